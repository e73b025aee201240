//! Tests wakes: a sleeping thread is woken, also where one of several that could have done it is
//! stopped, or where one that slept before has given up.

#[cfg(feature = "tokio")]
mod given_up;
mod interrupted;
mod room;
#[cfg(feature = "marks")]
mod stopped;

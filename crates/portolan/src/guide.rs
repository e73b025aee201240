//! The guide. The front page of this documentation is its first chapter.
//!
//! It is here for readers, and so that what it shows is compiled and run as this documentation's
//! examples are; no program can name this module.

#[doc = include_str!("../guide/tutorial.md")]
pub mod tutorial {}

#[doc = include_str!("../guide/concepts.md")]
pub mod concepts {}

#[doc = include_str!("../guide/choosing.md")]
pub mod choosing {}

#[doc = include_str!("../guide/deaths.md")]
pub mod deaths {}

#[doc = include_str!("../guide/from_iceoryx2.md")]
pub mod from_iceoryx2 {}

#[doc = include_str!("../guide/from_zenoh.md")]
pub mod from_zenoh {}

#[doc = include_str!("../guide/from_zeromq.md")]
pub mod from_zeromq {}

#[doc = include_str!("../guide/from_multiprocessing.md")]
pub mod from_multiprocessing {}

#[doc = include_str!("../guide/platforms.md")]
pub mod platforms {}

/// What the README shows is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}

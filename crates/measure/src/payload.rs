//! Does what senders and receivers do to the bytes of a message: the same loops for every system,
//! so that rows differ by the system alone.

use std::hint::black_box;

use portolan_sys::shared;

/// Writes all of a private payload, by the same loop as [`Window::touch_write`](shared::Window::touch_write).
pub fn write(payload: &mut [u8], seed: u64) {
    shared::write_words(payload, seed);
}

/// Reads all of a private payload, by the same loop as [`Window::sum`](shared::Window::sum).
pub fn read(payload: &[u8]) {
    black_box(shared::sum_words(payload));
}

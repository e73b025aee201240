//! Services and their clients, in threads and in processes.

mod calls;
mod deaths;
mod service;

//! Services and their clients, in threads and in processes.

mod awaited;
mod calls;
mod deaths;
mod rendezvous;
mod service;
mod sharing;
mod steps;
mod tasks;

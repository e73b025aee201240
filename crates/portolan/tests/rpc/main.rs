//! Services and their clients, in threads and in processes.

mod attribute;
mod awaited;
mod calls;
mod deaths;
mod hostile;
mod leaving;
mod loans;
mod misused;
mod moving;
mod parcels;
mod rendezvous;
mod service;
mod sharing;
mod steps;
mod tasks;
mod window;

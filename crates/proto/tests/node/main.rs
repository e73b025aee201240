//! Nodes, step by step. They are one program, so that what all of them run is compiled once.

mod acknowledgements;
mod grants;
mod moves;
mod rate;
mod rights;
mod saved;
mod traffic;
mod versions;
mod wire;

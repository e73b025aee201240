//! Directories of nodes: the same scenes over each of them, with nodes as processes; and what links
//! notice of a directory that is killed, hangs or lies, which is nothing.

mod faults;
#[path = "../processes/scene/mod.rs"]
#[allow(dead_code)]
mod scene;
mod scenes;

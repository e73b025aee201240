//! Receive rights move between nodes, step by step.

mod asking;
mod scenes;
mod three;

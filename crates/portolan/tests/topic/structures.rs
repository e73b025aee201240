//! Samples that are structures: built by one program, read in place by others.

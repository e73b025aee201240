# What `capnp.rs` calls. The code that is made of it is checked in, so that a build needs no
# compiler of schemas. To make it again, in this directory, with `capnp` (Debian's package
# capnproto) and `cargo install capnpc` in the version of the crate `capnp` in Cargo.lock:
#
#   capnp compile -orust work.capnp
@0xb8c1d4a2f0e65937;

# Where the code is: capnpc's own annotation, as its rust.capnp declares it.
annotation parentModule @0xabee386cd1450364 (file) :Text;
$parentModule("systems::capnp");

interface Work {
  call @0 Bytes -> Bytes;
}

struct Bytes {
  bytes @0 :Data;
}

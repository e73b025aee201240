//! `portolan ls`: what runs on this machine.

use crate::args::LsArgs;
use crate::error::Result;
use crate::out;

pub(crate) fn run(args: &LsArgs) -> Result<()> {
    // No domain can exist before the library does.
    if args.json {
        return out::print("{\"domains\": []}\n");
    }
    out::print("no domain on this machine\n")
}

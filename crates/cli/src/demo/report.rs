//! Prints the demo's results at its end.

use portolan_measure::Result;
use portolan_measure::out::{self, Align, Table};
use serde::Serialize;

use super::chain::Totals;
use super::files::Input;
use crate::args::CarrierName;

/// Hops between the three processes.
const HOPS: u64 = 2;
/// Copies by read(2) of the input and write(2) of the output, alike for all carriers.
const FILE_COPIES: u64 = 2;

/// One carrier's results.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome {
    carrier: &'static str,
    seconds: f64,
    gb_per_s: f64,
    cpu_s_per_gb: f64,
    /// Between the processes, and between them and the files.
    bytes_copied_between_processes: u64,
    bytes_copied_in_all: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    input: &'a str,
    bytes: u64,
    blake3: &'a str,
    carriers: &'a [Outcome],
}

impl Outcome {
    pub(crate) fn new(carrier: CarrierName, input: &Input, totals: &Totals) -> Self {
        let gigabytes = input.len() as f64 / 1e9;
        let seconds = totals.elapsed.as_secs_f64();
        // An empty file has no CPU time a byte.
        let cpu_s_per_gb = if gigabytes > 0.0 {
            totals.cpu.as_secs_f64() / gigabytes
        } else {
            0.0
        };
        Self {
            carrier: carrier.label(),
            seconds,
            gb_per_s: gigabytes / seconds,
            cpu_s_per_gb,
            bytes_copied_between_processes: HOPS * carrier.copies_a_hop() * input.len(),
            bytes_copied_in_all: (HOPS * carrier.copies_a_hop() + FILE_COPIES) * input.len(),
        }
    }
}

pub(crate) fn print(input: &Input, digest: &str, outcomes: &[Outcome], json: bool) -> Result<()> {
    if json {
        return crate::json::print(&Report {
            input: input.name(),
            bytes: input.len(),
            blake3: digest,
            carriers: outcomes,
        });
    }
    use Align::{Left, Right};
    let mut table = Table::new(&[
        ("carrier", Left),
        ("GB/s", Right),
        ("CPU s/GB", Right),
        ("copied between processes", Right),
        ("copied in all", Right),
    ]);
    for outcome in outcomes {
        table.row(vec![
            outcome.carrier.to_owned(),
            format!("{:.2}", outcome.gb_per_s),
            format!("{:.2}", outcome.cpu_s_per_gb),
            out::size(outcome.bytes_copied_between_processes),
            out::size(outcome.bytes_copied_in_all),
        ]);
    }
    out::print(&format!(
        "{}, {}, reader -> hasher -> writer\nBLAKE3 {digest}\n\
         the same in the input, on the way and in the output, whatever carried it\n\n{}",
        input.name(),
        out::size(input.len()),
        table.render(),
    ))
}

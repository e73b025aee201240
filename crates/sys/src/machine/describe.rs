//! Describes the machine, for reports that others compare.

use std::fmt;
use std::fs::read_to_string;

/// What a benchmark's reader needs to know of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// The processor's model.
    pub cpu_model: String,
    /// Processors that are online.
    pub cpus: usize,
    /// Processors that this process may use.
    pub cpus_allowed: usize,
    /// Whether it says that it is a virtual machine.
    pub virtual_machine: bool,
    /// The kernel's release.
    pub kernel: String,
    /// Bytes of memory.
    pub memory: u64,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`; the setting is in brackets.
    pub huge_pages: String,
    /// The same for shared memory.
    pub shared_huge_pages: String,
}

/// Describes this machine. What cannot be found out is empty, zero, or "unknown".
///
/// # Examples
///
/// ```
/// println!("{}", portolan_sys::machine::describe());
/// ```
pub fn describe() -> Machine {
    let cpuinfo = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let unknown = || "unknown".to_owned();
    Machine {
        cpu_model: field("model name").unwrap_or_else(unknown),
        cpus: cpuinfo
            .lines()
            .filter(|line| line.starts_with("processor"))
            .count(),
        cpus_allowed: super::cpus_allowed().len(),
        virtual_machine: field("flags")
            .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor")),
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        memory: meminfo("MemTotal:").unwrap_or(0),
        huge_pages: huge_pages("enabled"),
        shared_huge_pages: huge_pages("shmem_enabled"),
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.virtual_machine {
            " (virtual machine)"
        } else {
            ""
        };
        writeln!(f, "processor   {}{kind}", self.cpu_model)?;
        writeln!(f, "processors  {}, {} usable", self.cpus, self.cpus_allowed)?;
        writeln!(f, "memory      {:.1} GiB", gibibytes(self.memory))?;
        writeln!(f, "kernel      {}", self.kernel)?;
        write!(
            f,
            "huge pages  {}; shared memory: {}",
            self.huge_pages, self.shared_huge_pages
        )
    }
}

#[expect(clippy::cast_precision_loss, reason = "shown with one decimal place")]
fn gibibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// A setting of transparent huge pages, or "none".
pub(crate) fn huge_pages(setting: &str) -> String {
    read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{setting}"))
        .map_or_else(|_| "none".to_owned(), |text| text.trim().to_owned())
}

/// A line of `/proc/meminfo`, in bytes.
pub(super) fn meminfo(name: &str) -> Option<u64> {
    let meminfo = read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

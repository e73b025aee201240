//! What memory our control group leaves us.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The files of one version of the memory controller.
struct Files {
    root: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Line of `memory.stat` with file pages that go first when memory is short.
    reclaimable: &'static str,
}

const V2: Files = Files {
    root: "/sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    reclaimable: "inactive_file ",
};

const V1: Files = Files {
    root: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file ",
};

/// Bytes left to our group and the groups above it; `None` without a limit.
pub(super) fn headroom() -> Option<u64> {
    headroom_of(&read_to_string("/proc/self/cgroup").ok()?)
}

/// As [`headroom`], for the groups named in the text of `/proc/PID/cgroup`.
fn headroom_of(groups: &str) -> Option<u64> {
    let rooms = groups.lines().filter_map(|line| {
        // Number, controllers, path. The second version has no controllers.
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        match controllers {
            "" => V2.headroom(path),
            some if some.split(',').any(|one| one == "memory") => V1.headroom(path),
            _ => None,
        }
    });
    rooms.min()
}

impl Files {
    /// The least that `path` or a group above it has left.
    fn headroom(&self, path: &str) -> Option<u64> {
        let inside: PathBuf = Path::new(self.root).join(path.trim_start_matches('/'));
        let groups = inside
            .ancestors()
            .take_while(|group| group.starts_with(self.root));
        groups.filter_map(|group| self.left(group)).min()
    }

    /// What one group has left. The root group has no limit.
    fn left(&self, group: &Path) -> Option<u64> {
        let read = |file: &str| read_to_string(group.join(file)).ok();
        // "max", in the second version, is no number.
        let limit: u64 = read(self.limit)?.trim().parse().ok()?;
        let used: u64 = read(self.used)?.trim().parse().ok()?;
        let stat = read("memory.stat").unwrap_or_default();
        let reclaimable = stat
            .lines()
            .find_map(|line| line.strip_prefix(self.reclaimable)?.trim().parse().ok())
            .unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
    }
}

#[cfg(test)]
mod tests {
    use super::headroom_of;

    #[test]
    fn groups_that_do_not_exist_limit_nothing() {
        assert_eq!(headroom_of(""), None);
        assert_eq!(headroom_of("nonsense\n1:cpu:/a\n"), None);
        assert_eq!(headroom_of("4:memory:/no/such/group\n"), None);
    }
}

//! Reads how much memory our control group leaves us.

use std::fs::read_to_string;
use std::path::Path;

/// The files of one version of the memory controller.
struct Files {
    /// Where its groups are, below the directory of all control groups.
    below: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Line of `memory.stat` with file pages that go first when memory is short.
    reclaimable: &'static str,
}

const V2: Files = Files {
    below: "",
    limit: "memory.max",
    used: "memory.current",
    reclaimable: "inactive_file ",
};

const V1: Files = Files {
    below: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file ",
};

/// Bytes left to our group and the groups above it; `None` without a limit.
pub(super) fn headroom() -> Option<u64> {
    headroom_of(
        &read_to_string("/proc/self/cgroup").ok()?,
        Path::new("/sys/fs/cgroup"),
    )
}

/// As [`headroom`], for the groups named in the text of `/proc/PID/cgroup`.
fn headroom_of(groups: &str, root: &Path) -> Option<u64> {
    let rooms = groups.lines().filter_map(|line| {
        // Number, controllers, path. The second version has no controllers.
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        match controllers {
            "" => V2.headroom(root, path),
            some if some.split(',').any(|one| one == "memory") => V1.headroom(root, path),
            _ => None,
        }
    });
    rooms.min()
}

impl Files {
    /// The least that `path` or a group above it has left.
    fn headroom(&self, root: &Path, path: &str) -> Option<u64> {
        let root = root.join(self.below);
        let inside = root.join(path.trim_start_matches('/'));
        let groups = inside
            .ancestors()
            .take_while(|group| group.starts_with(&root));
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
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::headroom_of;

    /// A directory of control groups that goes when the test is over.
    struct Groups(PathBuf);

    impl Groups {
        fn new(name: &str) -> Self {
            let id = std::process::id();
            Self(std::env::temp_dir().join(format!("portolan-cgroup-{name}-{id}")))
        }

        fn file(&self, path: &str, content: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
    }

    impl Drop for Groups {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_group_above_may_be_the_narrowest() {
        let groups = Groups::new("v2");
        groups.file("a/memory.max", "1000\n");
        groups.file("a/memory.current", "700\n");
        groups.file("a/memory.stat", "anon 5\ninactive_file 100\n");
        groups.file("a/b/memory.max", "max\n");
        groups.file("a/b/memory.current", "600\n");
        assert_eq!(headroom_of("0::/a/b\n", &groups.0), Some(400));
    }

    #[test]
    fn the_first_version_is_read_too() {
        let groups = Groups::new("v1");
        groups.file("memory/a/memory.limit_in_bytes", "1000\n");
        groups.file("memory/a/memory.usage_in_bytes", "700\n");
        assert_eq!(
            headroom_of("3:cpu:/x\n2:hugetlb,memory:/a\n", &groups.0),
            Some(300)
        );
    }

    #[test]
    fn groups_that_do_not_exist_limit_nothing() {
        let nowhere = Path::new("/no/such/directory");
        assert_eq!(headroom_of("", nowhere), None);
        assert_eq!(headroom_of("nonsense\n1:cpu:/a\n0::/\n", nowhere), None);
    }
}

//! Marks name the steps at which the torture run kills a process.
//!
//! With the feature `marks` every [`mark!`](crate::mark!) calls the hook that the
//! test installed; without it, the macro is nothing at all.

/// A step at which a process may be killed by the torture run.
///
/// ```
/// portolan_shm::mark!("doc.example");
/// ```
#[macro_export]
macro_rules! mark {
    ($name:literal) => {
        #[cfg(feature = "marks")]
        $crate::mark::reached($name);
    };
}

#[cfg(feature = "marks")]
mod hook {
    use std::sync::OnceLock;

    static HOOK: OnceLock<fn(&'static str)> = OnceLock::new();

    /// Installs what happens at every mark; the first caller wins.
    pub fn install(hook: fn(&'static str)) {
        let _ = HOOK.set(hook);
    }

    /// Called by the macro.
    #[inline]
    pub fn reached(name: &'static str) {
        if let Some(hook) = HOOK.get() {
            hook(name);
        }
    }
}

#[cfg(feature = "marks")]
pub use hook::{install, reached};

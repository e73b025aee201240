//! Counts the instructions and system calls of one operation at a time.
//!
//! A scene is one further process that sends to itself, round after round; of each round the
//! same parts are counted. Nothing is traced, no thread sleeps, no other process takes part (but
//! for calls, where a thread serves and another calls): so it takes the same instructions each
//! time, on every machine, in builds of one kind ([`Build`]).
//!
//! | file | holds |
//! |---|---|
//! | `build` | what a count depends on |
//! | `rounds` | what a counted process does, and what it tells |
//! | `ports` | messages, extents, requests |
//! | `streams` | channels and topics |
//! | `memory` | allocation, exported memory, signals, wait sets |
//! | `calls` | both sides of a call |
//! | `iceoryx` | the same operations of iceoryx2 |
//!
//! # What is and what is not counted
//!
//! - A system call is one instruction. An instruction that repeats itself (`rep movsb`) is one,
//!   however often it does.
//! - Copies of 1 KiB and more are not counted: the scene is gone through with the payload and
//!   with half of it, and what grows between the two is taken off. (How bytes are best copied
//!   differs between processors.)
//! - The C library picks its routines by the processor. Here it is told to do without what not
//!   all processors have.

mod build;
mod calls;
#[cfg(feature = "peers")]
mod iceoryx;
mod many;
mod memory;
mod ports;
mod rounds;
mod streams;

pub use build::Build;
use serde::{Deserialize, Serialize};

use crate::child::{Child, Control};
use crate::cpus::{self, Cpus};
use crate::error::Result;
use crate::stepped::{self, What, refused, seize};
use rounds::{Go, Ready, Rounds};

/// What the C library is told, of a process that is counted: in its environment.
pub const PLAIN: (&str, &str) = (
    "GLIBC_TUNABLES",
    "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX2,-AVX,-ERMS,-FSRM,-BMI2,-MOVBE,-RTM,-SSE4_2,-SSE4_1,-SSSE3",
);

/// Operations that are counted together: what one does, the next one undoes.
pub struct Scene {
    /// Whose operations.
    pub system: &'static str,
    /// Its parts, in their order.
    pub parts: &'static [&'static str],
    /// Bytes of its payload.
    bytes: usize,
    /// Goes through it. Sized by the bytes of its payload, and of the payload of this run.
    run: Run,
    whose: Whose,
}

/// Goes through a scene.
type Run = fn(usize, usize, &Rounds<'_>) -> Result<()>;

impl Scene {
    /// Portolan's, of which the instructions of the process's first thread count.
    fn ours(parts: &'static [&'static str], bytes: usize, run: Run) -> Self {
        Self {
            system: "Portolan",
            parts,
            bytes,
            run,
            whose: Whose::Ours,
        }
    }

    /// Portolan's, of which the instructions of a thread that serves count.
    fn served(parts: &'static [&'static str], bytes: usize, run: Run) -> Self {
        Self {
            whose: Whose::Server,
            ..Self::ours(parts, bytes, run)
        }
    }
}

/// Whose instructions count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The process's first thread's, between marks.
    Ours,
    /// Those of a thread that serves: from one call's marks to the next call's.
    Server,
}

/// One operation, counted.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Whose operation.
    pub system: &'static str,
    /// Which.
    pub operation: &'static str,
    /// Instructions in user mode: the fewest of all counts, the copies taken off.
    pub instructions: u64,
    /// The same of its system calls.
    pub system_calls: u64,
    /// How many counts there were.
    pub counts: usize,
    /// How many of them were the fewest. All: it never differed.
    pub fewest: usize,
    /// Its payload was copied, and that is taken off.
    pub copies: bool,
}

/// To the counted process: its place in [`scenes`], the bytes of its payload.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SceneBrief {
    scene: usize,
    bytes: usize,
    /// The domain that it joins, if it does not make one.
    domain: Option<String>,
    cpus: Cpus,
}

/// Payloads from here on are counted without their copies.
const LARGE: usize = 1 << 10;

/// All there are, in the order in which people read them.
pub fn scenes() -> Vec<Scene> {
    let mut scenes = Vec::new();
    scenes.extend(ports::scenes());
    scenes.extend(streams::scenes());
    scenes.extend(memory::scenes());
    scenes.extend(many::scenes());
    scenes.extend(calls::scenes());
    #[cfg(feature = "peers")]
    scenes.extend(iceoryx::scenes());
    scenes
}

/// Counts a scene's parts; why they cannot be counted here.
///
/// # Errors
///
/// [`MeasureError`](crate::MeasureError): a process of this run ended.
pub fn count(number: usize, cpus: &Cpus) -> Result<stepped::Counted<Vec<Row>>> {
    count_at(number, None, cpus)
}

/// The same in a domain of this name, of which others are members. For scenes of ports.
///
/// # Errors
///
/// As [`count`].
pub fn count_in(number: usize, domain: &str, cpus: &Cpus) -> Result<stepped::Counted<Vec<Row>>> {
    count_at(number, Some(domain), cpus)
}

fn count_at(
    number: usize,
    domain: Option<&str>,
    cpus: &Cpus,
) -> Result<stepped::Counted<Vec<Row>>> {
    let Some(scene) = scenes().into_iter().nth(number) else {
        return Ok(Ok(Vec::new()));
    };
    let whole = match once(number, &scene, scene.bytes, domain, cpus)? {
        Ok(whole) => whole,
        Err(why) => return Ok(Err(why)),
    };
    let copies = scene.bytes >= LARGE;
    let half = if copies {
        match once(number, &scene, scene.bytes / 2, domain, cpus)? {
            Ok(half) => Some(half),
            Err(why) => return Ok(Err(why)),
        }
    } else {
        None
    };
    let rows = scene.parts.iter().zip(&whole).enumerate();
    let rows = rows.map(|(index, (operation, part))| {
        let grows = half.as_ref().and_then(|half| half.get(index));
        let grows = grows.map_or(0, |half| {
            part.instructions.saturating_sub(half.instructions)
        });
        Row {
            system: scene.system,
            operation,
            instructions: part.instructions.saturating_sub(2 * grows),
            system_calls: part.system_calls,
            counts: part.counts,
            fewest: part.fewest,
            copies,
        }
    });
    Ok(Ok(rows.collect()))
}

/// A part as it was counted.
struct Part {
    instructions: u64,
    system_calls: u64,
    counts: usize,
    fewest: usize,
}

fn once(
    number: usize,
    scene: &Scene,
    bytes: usize,
    domain: Option<&str>,
    cpus: &Cpus,
) -> Result<stepped::Counted<Vec<Part>>> {
    // Where that is refused, alignment may differ from run to run, and with it a copy's length.
    portolan_sys::process::fix_addresses();
    let brief = SceneBrief {
        scene: number,
        bytes,
        domain: domain.map(str::to_owned),
        cpus: cpus.clone(),
    };
    let mut child = Child::start_scene(brief, PLAIN)?;
    let Ready { thread } = child.expect()?;
    // We share the processor of the stepped process.
    cpus::pin(match scene.whose {
        Whose::Ours => cpus.ours,
        Whose::Server => cpus.peer(0),
    })?;
    let counted = seize(thread).and_then(|mut stepper| {
        child.send(&Go).map_err(refused)?;
        let mut counts = |what| match scene.whose {
            Whose::Ours => stepped::counts(&mut stepper, what, scene.parts.len(), rounds::COUNTED),
            Whose::Server => calls::served(&mut stepper, what),
        };
        let calls = counts(What::SystemCalls)?;
        Ok((counts(What::Instructions)?, calls))
    });
    cpus::pin(cpus.ours)?;
    let counted = match counted {
        Ok(counted) => counted,
        Err(why) => return Ok(Err(why)),
    };
    child.dismiss()?;
    let (instructions, calls) = counted;
    let parts = instructions.iter().zip(&calls).map(|(all, calls)| {
        let instructions = all.iter().copied().min().unwrap_or(0);
        Part {
            instructions,
            system_calls: calls.iter().copied().min().unwrap_or(0),
            counts: all.len(),
            fewest: all.iter().filter(|&&one| one == instructions).count(),
        }
    });
    Ok(Ok(parts.collect()))
}

/// The whole life of a counted process.
pub(crate) fn serve(brief: &SceneBrief, control: &Control) -> Result<()> {
    let Some(scene) = scenes().into_iter().nth(brief.scene) else {
        return Ok(());
    };
    cpus::pin(brief.cpus.ours)?;
    // Otherwise a writer asks for it once, and goes without barriers whenever that is answered.
    portolan_sys::barrier::allow_now();
    let rounds = Rounds {
        control,
        domain: brief.domain.as_deref(),
        cpus: &brief.cpus,
    };
    (scene.run)(scene.bytes, brief.bytes, &rounds)
}

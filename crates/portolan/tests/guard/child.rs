//! Another process of a test, what it can be told to do, and what became of it.

use portolan::{
    Access, Deadline, Domain, Extent, Message, PortOptions, Protection, ReceiveRight, SendRight,
};
use portolan_testkit::{Answer, obey};
pub(crate) use portolan_testkit::{PATIENCE, unique};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A process that takes orders. Killed when dropped.
pub(crate) struct Child(portolan_testkit::Child);

/// How a process ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) signal: Option<i32>,
    pub(crate) said: String,
}

impl Child {
    pub(crate) fn new() -> Self {
        let piped = |command: &mut Command| {
            command.stderr(Stdio::piped());
        };
        Self(portolan_testkit::Child::running(
            "child::takes_orders",
            piped,
        ))
    }

    /// A process that has joined the guarded domain `domain`.
    pub(crate) fn joined(domain: &str) -> Self {
        let mut child = Self::new();
        child.ask(&format!("join {domain}"));
        child
    }

    /// Gives an order; the answer, which is no error.
    pub(crate) fn ask(&mut self, order: &str) -> String {
        self.tell(order);
        let answer = self.answer_or_end();
        let answer = answer.unwrap_or_else(|| panic!("{order}: {:?}", self.end()));
        assert!(!answer.starts_with("error"), "{order}: {answer}");
        answer
    }

    /// Gives an order whose answer is a number.
    pub(crate) fn number(&mut self, order: &str) -> usize {
        self.ask(order).parse().unwrap()
    }

    /// Gives an order that is the death of the process.
    pub(crate) fn dies_of(&mut self, order: &str) -> End {
        self.tell(order);
        assert_eq!(self.answer_or_end(), None, "{order}");
        self.end()
    }

    /// Waits for its end.
    pub(crate) fn end(&mut self) -> End {
        let (status, said) = self.0.end();
        End {
            signal: status.signal(),
            said,
        }
    }
}

impl Deref for Child {
    type Target = portolan_testkit::Child;

    fn deref(&self) -> &portolan_testkit::Child {
        &self.0
    }
}

impl DerefMut for Child {
    fn deref_mut(&mut self) -> &mut portolan_testkit::Child {
        &mut self.0
    }
}

impl End {
    /// Asserts that it died of `signal`, and said all of these.
    pub(crate) fn expect(&self, signal: i32, words: &[&str]) {
        assert_eq!(self.signal, Some(signal), "{}", self.said);
        for word in words {
            assert!(self.said.contains(word), "no {word:?} in: {}", self.said);
        }
    }
}

/// Reads a byte that the type system would not let us read.
pub(crate) fn peek(address: usize) -> u8 {
    let byte = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY:
    // - An extent of ours, or the test is about the fault.
    unsafe { byte.read_volatile() }
}

/// Writes a byte that the type system would not let us write.
pub(crate) fn poke(address: usize, value: u8) {
    let byte = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY:
    // - An extent of ours, or the test is about the fault.
    unsafe { byte.write_volatile(value) };
}

/// Faults of this thread that needed no input or output.
fn faults() -> i64 {
    // SAFETY:
    // - All bits zero are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY:
    // - Room for one.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_minflt
}

/// Whether this process can read a page without a fault.
pub(crate) fn is_open(address: usize) -> bool {
    use std::os::unix::fs::FileExt;
    // Of a range that may not be touched, page tables keep what is not in force.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let readable = maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let bound = |digits| usize::from_str_radix(digits, 16).unwrap();
        (bound(start)..bound(end)).contains(&address) && rest.starts_with('r')
    });
    if !readable {
        return false;
    }
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entry = [0; 8];
    let offset = address as u64 / 4096 * 8;
    pagemap.read_exact_at(&mut entry, offset).unwrap();
    u64::from_le_bytes(entry) >> 63 == 1
}

/// The same of all pages of an extent. (Faults are not counted: the code that touches may
/// fault, too, where it lies on pages of its own.)
pub(crate) fn is_open_throughout(bytes: &[u8]) -> bool {
    let first = bytes.as_ptr().addr();
    (first..first + bytes.len()).step_by(4096).all(is_open)
}

/// What a process that takes orders has.
#[derive(Default)]
struct State {
    domain: Option<Domain>,
    extents: Vec<Extent>,
    ports: Vec<ReceiveRight>,
    rights: Vec<SendRight>,
    message: Message,
}

/// Not a test: what the other processes run.
#[test]
fn takes_orders() {
    let mut state = State::default();
    obey(|line| state.obey(line));
}

fn done() -> Answer {
    Ok("done".to_owned())
}

impl State {
    fn obey(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["join", name] => self.join(name, 1 << 30, false),
            ["join", name, "open"] => self.join(name, 1 << 30, true),
            ["join", name, limit] => self.join(name, limit.parse()?, false),
            ["space"] => Ok(self.domain().space().to_string()),
            ["bind", name] => {
                let port = self.domain().bind(PortOptions::named(name))?;
                self.ports.push(port);
                done()
            }
            ["serve", name] => {
                let options = PortOptions::named(name).synchronous();
                self.ports.push(self.domain().bind(options)?);
                done()
            }
            ["connect", name] => {
                let right = self.domain().connect(name, Deadline::after(PATIENCE))?;
                self.rights.push(right);
                done()
            }
            ["allocate", bytes, fill] => {
                let mut extent = self.domain().allocate(bytes.parse()?)?;
                extent.fill(fill.parse()?);
                let address = extent.address();
                self.extents.push(extent);
                Ok(address.to_string())
            }
            ["free"] => {
                self.extents.clear();
                self.message.clear();
                done()
            }
            ["send", header] => self.send(header.parse()?),
            ["forward"] => {
                let message = std::mem::take(&mut self.message);
                self.rights[0].send(message, Deadline::after(PATIENCE))?;
                done()
            }
            ["receive", access] => {
                self.message = self.ports[0].receive(hint(access), Deadline::after(PATIENCE))?;
                Ok(self.message.extents().len().to_string())
            }
            ["answer", access, add] => self.reply(hint(access), add.parse()?),
            ["request", access] => {
                let message = self.composed(0)?;
                let deadline = Deadline::after(PATIENCE);
                self.message = self.rights[0].request_reply(message, hint(access), deadline)?;
                Ok(self.message.extents().len().to_string())
            }
            ["at"] => Ok(self.message.extents()[0].address().to_string()),
            ["open"] => Ok(is_open(self.message.extents()[0].address()).to_string()),
            ["faults"] => {
                // The code that touches may fault itself, where it lies on pages of its own.
                let ours = [1; 8192];
                assert_eq!(touch_all(&mut [&ours[..], &ours[..1]].into_iter()), 3);
                let before = faults();
                let bytes = touch_all(&mut self.message.slices());
                assert!(bytes > 0);
                Ok((faults() - before).to_string())
            }
            ["holds", fill, header] => Ok(self.holds(fill.parse()?, header.parse()?).to_string()),
            ["fill", fill] => {
                let fill = fill.parse()?;
                self.message
                    .extents_mut()
                    .iter_mut()
                    .for_each(|e| e.fill(fill));
                done()
            }
            ["peek", address] => Ok(peek(address.parse()?).to_string()),
            ["poke", address] => {
                poke(address.parse()?, 255);
                done()
            }
            ["write", address] => write(address.parse()?),
            ["strays park"] | ["strays", "park"] => {
                park_strays();
                done()
            }
            ["race", siblings, rounds] => self.race(siblings.parse()?, rounds.parse()?),
            ["watch", rounds] => self.watch(rounds.parse()?),
            ["fork", "peek", address] => fork_and_peek(address.parse()?),
            ["leave"] => {
                let domain = self.domain.take().unwrap();
                *self = Self::default();
                domain.leave()?;
                done()
            }
            _ => Err(format!("no such order: {line}").into()),
        }
    }

    fn domain(&self) -> &Domain {
        self.domain.as_ref().unwrap()
    }

    fn join(&mut self, name: &str, limit: u64, open: bool) -> Answer {
        let mut builder = Domain::builder(name)
            .size(256 << 20)
            .limit(limit)
            .deadline(PATIENCE)
            .space_name("victim")
            .protection(Protection::Guarded);
        if open {
            builder = builder.always_open();
        }
        self.domain = Some(builder.join()?);
        done()
    }

    /// All that was allocated, in one message.
    fn composed(&mut self, header: usize) -> Result<Message, Box<dyn std::error::Error>> {
        let mut message = Message::new(&vec![9; header])?;
        for extent in self.extents.drain(..) {
            message.push(extent).map_err(|e| e.to_string())?;
        }
        Ok(message)
    }

    fn send(&mut self, header: usize) -> Answer {
        let message = self.composed(header)?;
        self.rights[0].send(message, Deadline::after(PATIENCE))?;
        done()
    }

    /// Answers one request in place, with `add` added to each byte.
    fn reply(&mut self, access: Access, add: u8) -> Answer {
        let mut request = self.ports[0].get_request(access, Deadline::after(PATIENCE))?;
        for extent in request.message.extents_mut() {
            extent.iter_mut().for_each(|b| *b += add);
        }
        request.reply_in_place()?;
        done()
    }

    fn holds(&self, fill: u8, header: usize) -> bool {
        self.message.header().len() == header
            && self.message.header().iter().all(|b| *b == 9)
            && self.message.slices().all(|s| s.iter().all(|b| *b == fill))
    }

    /// Sends extents that siblings write to all the time, through addresses that they kept.
    fn race(&mut self, siblings: usize, rounds: usize) -> Answer {
        for round in 0..rounds {
            let bytes = [4096, 3 << 12, 1 << 20, 2 << 20, 5 << 20][round % 5];
            let mut extent = self.domain().allocate(bytes)?;
            extent.fill(1);
            let address = extent.address();
            self.extents.push(extent);
            let writing = std::sync::Arc::new(AtomicU32::new(0));
            for sibling in 0..siblings {
                let writing = std::sync::Arc::clone(&writing);
                std::thread::spawn(move || {
                    let mut value = 0u8;
                    loop {
                        value = value.wrapping_add(1);
                        for page in (0..bytes).step_by(4096) {
                            poke(address + page + sibling, value);
                        }
                        if value == 1 {
                            writing.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
            while (writing.load(Ordering::SeqCst) as usize) < siblings {
                std::thread::yield_now();
            }
            self.send(round % 2 * 100)?;
        }
        done()
    }

    /// Receives, and asserts that nothing changes any more from then on.
    fn watch(&mut self, rounds: usize) -> Answer {
        for round in 0..rounds {
            let hint = [Access::Now, Access::Later][round / 5 % 2];
            let message = match self.ports[0].receive(hint, Deadline::after(PATIENCE)) {
                Ok(message) => message,
                Err(error) => return Ok(format!("{round} rounds, then {error}")),
            };
            let before: Vec<u8> = message.slices().flatten().copied().collect();
            let end = Instant::now() + Duration::from_millis(3);
            while Instant::now() < end {
                std::thread::yield_now();
                let now = message.slices().flatten();
                if !now.eq(before.iter()) {
                    return Ok(format!("changed in round {round}"));
                }
            }
        }
        Ok(format!("{rounds} rounds"))
    }
}

fn hint(word: &str) -> Access {
    if word == "now" {
        Access::Now
    } else {
        Access::Later
    }
}

/// One piece of code, whatever it reads.
#[inline(never)]
fn touch_all(all: &mut dyn Iterator<Item = &[u8]>) -> usize {
    all.map(touch).sum()
}

/// Reads one byte of each page.
fn touch(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .step_by(4096)
        .map(std::hint::black_box)
        .filter(|b| **b < 255)
        .count()
}

/// Gives a closed page to a system call.
fn write(address: usize) -> Answer {
    use std::os::fd::AsRawFd;
    let (_read, write) = std::io::pipe()?;
    let from = std::ptr::with_exposed_provenance(address);
    // SAFETY:
    // - The kernel checks the address itself.
    let written = unsafe { libc::write(write.as_raw_fd(), from, 1) };
    let error = std::io::Error::last_os_error();
    Ok(if written == 1 {
        "written".to_owned()
    } else {
        format!("{:?}", error.raw_os_error())
    })
}

/// Makes this the handler before the library's: it keeps threads that strayed.
fn park_strays() {
    extern "C" fn park(_signal: libc::c_int) {
        static STRAYED: AtomicBool = AtomicBool::new(false);
        STRAYED.store(true, Ordering::SeqCst);
        loop {
            // SAFETY:
            // - Async-signal-safe.
            unsafe { libc::pause() };
        }
    }
    let entry: extern "C" fn(libc::c_int) = park;
    for signal in [libc::SIGBUS, libc::SIGSEGV] {
        // SAFETY:
        // - A handler of the right type, which only waits.
        unsafe { libc::signal(signal, entry as libc::sighandler_t) };
    }
}

/// A forked child touches the address; the signal it died of.
fn fork_and_peek(address: usize) -> Answer {
    // SAFETY:
    // - The child reads a byte, which kills it, and calls nothing else.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        peek(address);
        // SAFETY:
        // - Ends the process at once.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY:
    // - A child of ours, and room for its status.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    Ok(libc::WTERMSIG(status).to_string())
}

//! Says which types may lie in an arena, and lets two programs check that they mean the same type.

use crate::header::Identity;
use crate::{Boxed, List, Map, Text, Tree};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::num::{
    NonZeroI8, NonZeroI16, NonZeroI32, NonZeroI64, NonZeroI128, NonZeroIsize, NonZeroU8,
    NonZeroU16, NonZeroU32, NonZeroU64, NonZeroU128, NonZeroUsize,
};
use std::time::Duration;

/// What may lie in the arena `'a`, and go to another program there.
///
/// Derive it (`#[derive(portolan::Handover)]`): each field must be `Handover` itself, and the
/// type must not implement `Drop`.
///
/// | may travel | may not, because |
/// |---|---|
/// | numbers, `bool`, `char`, `()`, `NonZero`, `Duration`, arrays, tuples (of six at the most), `Option`, `Result` of what may | |
/// | [`List`], [`Text`], [`Map`], [`Tree`], [`Boxed`] of this arena and of what may | those of another arena: they point out of this one |
/// | structs and enums with the derive | references, `Box`, `Vec`, `String`, `Rc`: they point into one program's memory |
/// | | trait objects, function pointers: they point into one program's code |
/// | | types with `Drop`: what is in an arena is freed with its message, and never dropped there |
/// | | `Cell`, `Mutex`, atomics: a structure is read by many threads at once |
/// | | raw pointers, descriptors, unions: they mean nothing elsewhere |
///
/// # Safety
///
/// - All that a value points to lies in the arena `'a`: no reference, function or vtable.
/// - Nothing in it changes through a shared reference.
/// - No code relies on its `Drop`.
/// - `describe` says all that its bytes depend on but the build: the name, and each field's
///   name, place and type; so two types with one description can be taken for one another.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may not lie in an arena",
    label = "it would not be valid in another program",
    note = "write `#[derive(portolan::Handover)]` above a type of your own; what may lie in it is listed at `portolan::Handover`"
)]
pub unsafe trait Handover<'a>: Sync {
    /// Says what a value's bytes mean.
    fn describe(to: &mut Describe);
}

/// A type that can be asked for as a message's root: in each arena `'a` it is [`Root::At`].
///
/// `#[derive(Handover)]` implements it; so it is for what this crate makes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` may not lie in an arena",
    label = "it would not be valid in another program",
    note = "write `#[derive(portolan::Handover)]` above a type of your own; what may lie in it is listed at `portolan::Handover`"
)]
pub trait Root {
    /// The same type, in the arena `'a`.
    type At<'a>: Handover<'a>;
}

/// A description of a type, as it is made: a hash over names, sizes and places.
#[derive(Debug)]
pub struct Describe {
    hash: u64,
    /// Records that are described already, or just now: types may hold themselves.
    seen: Vec<&'static str>,
}

impl Describe {
    /// Adds a name.
    pub fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        self.hash = fnv(self.hash, text.as_bytes());
    }

    /// Adds a number.
    pub fn word(&mut self, word: u64) {
        self.hash = fnv(self.hash, &word.to_le_bytes());
    }

    /// Adds a type that has parts, once; where it comes again, which one it was.
    pub fn record<T>(&mut self, name: &str, parts: impl FnOnce(&mut Self)) {
        self.plain::<T>(name);
        let full = std::any::type_name::<T>();
        if let Some(which) = self.seen.iter().position(|s| *s == full) {
            return self.word(which as u64);
        }
        self.seen.push(full);
        parts(self);
        self.text("end");
    }

    /// Adds a field's name and place; the description of its type follows.
    pub fn place(&mut self, name: &str, offset: usize) {
        self.text(name);
        self.word(offset as u64);
    }

    /// Adds a type's name, size and alignment.
    fn plain<T>(&mut self, name: &str) {
        self.text(name);
        self.word(size_of::<T>() as u64);
        self.word(align_of::<T>() as u64);
    }
}

/// FNV-1a: every build must agree on it.
const fn fnv(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x100_0000_01b3);
        i += 1;
    }
    hash
}
const FNV: u64 = 0xcbf2_9ce4_8422_2325;

/// What two programs must have in common: compiler, target, its features, and the crates
/// whose types lie in arenas. A test compares the versions with the manifest's.
pub const BUILD: &str = concat!(
    "portolan-arena ",
    env!("CARGO_PKG_VERSION"),
    ", hashbrown 0.17.1, allocator-api2 0.2.21, foldhash 0.2.0, ",
    env!("PORTOLAN_BUILD")
);
/// A hash of [`BUILD`].
pub const BUILD_HASH: u64 = fnv(FNV, BUILD.as_bytes());

/// A hash of what `T`'s bytes mean.
///
/// Worked out when first asked for, and not by the compiler: a type that holds itself would
/// be a constant that depends on itself.
pub fn layout_of<T: Root>() -> u64 {
    thread_local! {
        static KNOWN: RefCell<Vec<(usize, u64)>> = const { RefCell::new(Vec::new()) };
    }
    // Functions that the linker found to be equal describe equally.
    let function = <T::At<'static> as Handover<'static>>::describe as fn(&mut Describe) as usize;
    KNOWN.with_borrow_mut(|known| {
        if let Some((_, hash)) = known.iter().find(|(f, _)| *f == function) {
            return *hash;
        }
        let mut describe = Describe {
            hash: FNV,
            seen: Vec::new(),
        };
        <T::At<'static> as Handover<'static>>::describe(&mut describe);
        known.push((function, describe.hash));
        describe.hash
    })
}

/// What the head of an arena says about a root of type `T`.
pub fn identity_of<T: Root>() -> Identity {
    Identity {
        layout: layout_of::<T>(),
        build: BUILD_HASH,
        name: name_of::<T>(),
        made_by: BUILD.to_owned(),
    }
}

/// A type's name for people, without the modules: `List<'_, Text<'_>>`.
pub fn name_of<T>() -> String {
    let full = std::any::type_name::<T>();
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut short = String::new();
    let mut rest = full;
    while !rest.is_empty() {
        let (path, after) = rest.split_at(rest.find(|c| !is_path(c)).unwrap_or(rest.len()));
        short.push_str(path.rsplit("::").next().unwrap_or(path));
        let next = after.find(is_path).unwrap_or(after.len());
        short.push_str(&after[..next]);
        rest = &after[next..];
    }
    short
}

macro_rules! plain {
    ($($t:ty),*) => {$(
        // SAFETY:
        // - no pointers, no cells, no `Drop`; name, size and alignment say all.
        unsafe impl Handover<'_> for $t {
            fn describe(to: &mut Describe) {
                to.plain::<Self>(stringify!($t));
            }
        }
        impl Root for $t {
            type At<'a> = Self;
        }
    )*};
}
plain!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64
);
plain!(bool, char, (), Duration);
plain!(
    NonZeroU8,
    NonZeroU16,
    NonZeroU32,
    NonZeroU64,
    NonZeroU128,
    NonZeroUsize
);
plain!(
    NonZeroI8,
    NonZeroI16,
    NonZeroI32,
    NonZeroI64,
    NonZeroI128,
    NonZeroIsize
);

macro_rules! of_parts {
    ($name:literal, $t:ty, $at:ty, $($p:ident),*) => {
        // SAFETY:
        // - it consists of its parts, which are `Handover`, and what the compiler adds;
        // - name, size, alignment and the parts' descriptions say all, for one compiler.
        unsafe impl<'a, $($p: Handover<'a>),*> Handover<'a> for $t {
            fn describe(to: &mut Describe) {
                to.plain::<Self>($name);
                $($p::describe(to);)*
            }
        }
        impl<$($p: Root),*> Root for $t {
            type At<'a> = $at;
        }
    };
}
of_parts!("Option", Option<T>, Option<T::At<'a>>, T);
of_parts!("Result", Result<T, U>, Result<T::At<'a>, U::At<'a>>, T, U);
of_parts!("1", (T,), (T::At<'a>,), T);
of_parts!("2", (T, U), (T::At<'a>, U::At<'a>), T, U);
of_parts!("3", (T, U, V), (T::At<'a>, U::At<'a>, V::At<'a>), T, U, V);
of_parts!(
    "4",
    (T, U, V, W),
    (T::At<'a>, U::At<'a>, V::At<'a>, W::At<'a>),
    T,
    U,
    V,
    W
);
of_parts!(
    "5",
    (T, U, V, W, X),
    (T::At<'a>, U::At<'a>, V::At<'a>, W::At<'a>, X::At<'a>),
    T,
    U,
    V,
    W,
    X
);
of_parts!(
    "6",
    (T, U, V, W, X, Y),
    (
        T::At<'a>,
        U::At<'a>,
        V::At<'a>,
        W::At<'a>,
        X::At<'a>,
        Y::At<'a>
    ),
    T,
    U,
    V,
    W,
    X,
    Y
);
of_parts!("Phantom", PhantomData<T>, PhantomData<T::At<'a>>, T);

// SAFETY:
// - it consists of `T`s; how many is in the description.
unsafe impl<'a, T: Handover<'a>, const N: usize> Handover<'a> for [T; N] {
    fn describe(to: &mut Describe) {
        to.plain::<Self>("array");
        to.word(N as u64);
        T::describe(to);
    }
}
impl<T: Root, const N: usize> Root for [T; N] {
    type At<'a> = [T::At<'a>; N];
}

macro_rules! collection {
    ($name:literal, $t:ident, $($p:ident),*) => {
        // SAFETY:
        // - it points into its arena (S1), whose lifetime it carries, or nowhere;
        // - nothing changes through a shared reference (S3);
        // - its `Drop` only gives memory back to the arena, which goes as a whole;
        // - its layout is fixed by the build, which names this crate's version and those of
        //   the crates that it wraps; its parts describe themselves.
        unsafe impl<'a, $($p: Handover<'a>),*> Handover<'a> for $t<'a, $($p),*> {
            fn describe(to: &mut Describe) {
                to.plain::<Self>($name);
                $($p::describe(to);)*
            }
        }
        impl<$($p: Root),*> Root for $t<'_, $($p),*> {
            type At<'a> = $t<'a, $($p::At<'a>),*>;
        }
    };
}
collection!("Text", Text,);
collection!("List", List, T);
collection!("Boxed", Boxed, T);
collection!("Map", Map, K, V);
collection!("Tree", Tree, K, V);

//! Builds one structure with every collection in it, and changes it step by step.

use portolan::Handover;
use portolan::structure::{Arena, Boxed, List, Map, NoRoom, Text, Tree};
use std::collections::{BTreeMap, HashMap};

/// One of everything.
#[derive(Debug, Handover)]
pub struct Chart<'a> {
    /// By name.
    pub map: Map<'a, Text<'a>, List<'a, u64>>,
    /// In order.
    pub tree: Tree<'a, u64, Text<'a>>,
    /// Boxes in a row.
    pub chain: Option<Boxed<'a, Link<'a>>>,
    /// A variant of each step.
    pub shape: Shape<'a>,
    /// Never filled.
    pub empty: (Map<'a, u64, u64>, Tree<'a, u64, u64>, List<'a, u64>),
}

/// A box that leads to the next.
#[derive(Debug, Handover)]
pub struct Link<'a> {
    /// How many follow.
    pub rest: u32,
    /// The next.
    pub next: Option<Boxed<'a, Link<'a>>>,
}

/// An enum of every form.
#[derive(Debug, PartialEq, Handover)]
pub enum Shape<'a> {
    /// Without fields.
    Point,
    /// With one.
    Round(f64),
    /// With names.
    Named {
        /// In the arena.
        name: Text<'a>,
        /// Beside it.
        sides: [u16; 3],
    },
}

/// Of the same name and size as what is sent elsewhere, but not the same.
#[derive(Debug, Handover)]
pub struct Stranger {
    /// A field of another name.
    pub other: u64,
}

/// How many steps there are.
pub const STEPS: u32 = 12;

/// What the chart holds after a step, in the program's own memory.
#[derive(Debug, Default, PartialEq)]
pub struct Model {
    map: HashMap<String, Vec<u64>>,
    tree: BTreeMap<u64, String>,
    chain: Option<u32>,
}

/// What the chart holds after `steps` steps.
pub fn model(steps: u32) -> Model {
    let mut model = Model::default();
    let entry = |n: u64| (name(n), vec![n; (n % 5) as usize]);
    for step in 0..steps {
        match step {
            1 => model.map.extend([entry(1)]),
            2 => {
                model.map.extend((0..1000).map(entry));
                model
                    .tree
                    .extend((0..1000).map(|n| (n * 7 % 1000, name(n))));
                model.chain = Some(20);
            }
            3 => {
                model.map.retain(|_, v| v.len() > 1);
                model.tree.retain(|k, _| k % 3 == 0);
                model.map.values_mut().for_each(|v| v.push(9));
            }
            4 => model = Model::default(),
            6 => {
                model.map.extend((0..20_000).map(entry));
                model
                    .tree
                    .extend((0..20_000).map(|n| (n * 7919 % 20_011, name(n))));
            }
            8 => {
                model.map.retain(|_, v| v.len() == 1);
                model.tree.retain(|k, _| *k >= 15_000);
            }
            9 => model.chain = Some(300),
            10 => {
                model.map.clear();
                model.tree.clear();
                model.chain = None;
            }
            11 => {
                model.map.extend((0..50).map(entry));
                model.tree.extend((0..50).map(|n| (n, name(n))));
            }
            _ => {}
        }
    }
    model
}

/// An empty chart.
pub fn begin(arena: Arena<'_>) -> Chart<'_> {
    Chart {
        map: arena.map(),
        tree: arena.tree(),
        chain: None,
        shape: Shape::Point,
        empty: (arena.map(), arena.tree(), arena.list()),
    }
}

/// Takes a step. What it finds was left by the other program.
///
/// # Errors
///
/// No room.
pub fn step<'a>(chart: &mut Chart<'a>, arena: Arena<'a>, step: u32) -> Result<(), NoRoom> {
    match step {
        1 => put(chart, arena, 1)?,
        2 => {
            for n in 0..1000 {
                put(chart, arena, n)?;
                chart.tree.insert(n * 7 % 1000, arena.text(&name(n))?)?;
            }
            chart.chain = Some(chain(arena, 20)?);
            chart.shape = Shape::Round(0.5);
        }
        3 => {
            chart.map.retain(|_, v| v.len() > 1);
            for key in (0..1000).filter(|k| k % 3 != 0) {
                assert!(chart.tree.remove(&key).is_some(), "{key} was there");
            }
            for (_, list) in chart.map.iter_mut() {
                list.push(9)?;
            }
            chart.shape = Shape::Named {
                name: arena.text("triangle")?,
                sides: [3, 4, 5],
            };
        }
        4 => {
            chart.map.clear();
            chart.tree.clear();
            chart.chain = None;
        }
        5 => {
            chart.map.shrink_to_fit()?;
            assert_eq!(chart.map.capacity(), 0, "nothing is kept");
            assert!(chart.map.take().is_empty() && chart.tree.take().is_empty());
            chart.empty.2.shrink_to_fit();
            chart.empty.0.shrink_to_fit()?;
        }
        6 => {
            for n in 0..20_000 {
                put(chart, arena, n)?;
                chart
                    .tree
                    .insert(n * 7919 % 20_011, arena.text(&name(n))?)?;
            }
        }
        7 => {
            // Taken, and put back one by one, the other way round.
            let (map, mut tree) = (chart.map.take(), chart.tree.take());
            assert!(chart.map.get("name 7").is_none() && chart.tree.first().is_none());
            for (key, value) in map.into_entries() {
                chart.map.insert(key, value)?;
            }
            while let Some((key, value)) = tree.pop_last() {
                chart.tree.insert(key, value)?;
            }
        }
        8 => {
            for n in (0..20_000).filter(|n| n % 5 != 1) {
                assert!(chart.map.remove(&*name(n)).is_some(), "{n} was there");
            }
            while chart.tree.first().is_some_and(|(k, _)| *k < 15_000) {
                chart.tree.pop_first();
            }
            chart.map.shrink_to_fit()?;
        }
        9 => chart.chain = Some(chain(arena, 300)?),
        10 => {
            let keys: Vec<u64> = chart.tree.keys().copied().collect();
            keys.iter().for_each(|k| drop(chart.tree.remove(k)));
            chart.map.retain(|_, _| false);
            chart.chain = None;
            chart.shape = Shape::Point;
        }
        11 => {
            for n in 0..50 {
                put(chart, arena, n)?;
                chart.tree.insert(n, arena.text(&name(n))?)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Compares the chart, part by part and lookup by lookup, with what it should hold.
pub fn check(chart: &Chart<'_>, model: &Model) {
    assert_eq!(chart.map.len(), model.map.len());
    for (key, values) in &model.map {
        let found = chart.map.get(key.as_str());
        assert_eq!(found.map(|list| &list[..]), Some(&values[..]), "{key}");
    }
    assert!(chart.map.keys().all(|k| model.map.contains_key(k.as_str())));
    assert!(chart.map.get("nobody").is_none());

    assert_eq!(chart.tree.len(), model.tree.len());
    let (theirs, ours) = (chart.tree.iter(), model.tree.iter());
    assert!(
        theirs
            .map(|(k, v)| (k, v.as_str()))
            .eq(ours.map(|(k, v)| (k, v.as_str())))
    );
    for (key, value) in &model.tree {
        assert_eq!(chart.tree.get(key).map(Text::as_str), Some(value.as_str()));
    }
    assert!(chart.tree.get(&u64::MAX).is_none());

    let mut next = chart.chain.as_deref();
    let mut length = model.chain;
    while let (Some(link), Some(rest)) = (next, length) {
        assert_eq!(link.rest, rest);
        (next, length) = (link.next.as_deref(), rest.checked_sub(1));
    }
    assert!(
        next.is_none() && length.is_none(),
        "the chain has its length"
    );

    assert!(chart.empty.0.is_empty() && chart.empty.0.get(&1).is_none());
    assert!(chart.empty.1.is_empty() && chart.empty.1.get(&1).is_none());
    assert_eq!(chart.empty.2[..], [0; 0]);
}

fn put<'a>(chart: &mut Chart<'a>, arena: Arena<'a>, n: u64) -> Result<(), NoRoom> {
    let mut values = arena.list();
    for _ in 0..n % 5 {
        values.push(n)?;
    }
    chart.map.insert(arena.text(&name(n))?, values)?;
    Ok(())
}

fn chain(arena: Arena<'_>, rest: u32) -> Result<Boxed<'_, Link<'_>>, NoRoom> {
    let mut link = arena.boxed(Link {
        rest: 0,
        next: None,
    })?;
    for rest in 1..=rest {
        let next = Some(link);
        link = arena.boxed(Link { rest, next })?;
    }
    Ok(link)
}

fn name(n: u64) -> String {
    format!("name {n}")
}

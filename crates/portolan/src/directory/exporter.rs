//! Names members that make offers, for clients that mean one of several.

use portolan_abi::connect::Maker;
use std::fmt;

/// Which exporter an import means: a member of the domain, by its space, its process or the name
/// that it has chosen, as `portolan ls` shows them. What is not said fits every member.
///
/// Two members of a domain may export under one name, and an importer that means one of them says
/// which ([`ImportOptions::exporter`](crate::vmmc::ImportOptions::exporter)). One that does not is
/// told which there are ([`OfferConnectError::Ambiguous`](crate::OfferConnectError::Ambiguous)).
///
/// # Examples
///
/// ```
/// use portolan::vmmc::{ExportMemory, ExportOptions, Exporter, ImportOptions, Reach};
/// use portolan::{Deadline, Domain};
/// # let soon = || Deadline::after(std::time::Duration::from_secs(60));
/// let domain = Domain::private()?; // Domain::builder("robot").space_name("left").join()?
/// let memory = ExportMemory::new(4096)?;
/// let export = domain.export(&memory, "picture", &ExportOptions::new(Reach::Read), soon())?;
///
/// // By its process or its space; Exporter::named("left") by the name it has chosen.
/// let this = Exporter::process(std::process::id());
/// let options = ImportOptions::default().exporter(this);
/// assert_eq!(domain.import_with("picture", &options, soon())?.len(), 4096);
///
/// // No member fits this, so the import waits; here it does not.
/// let other = ImportOptions::default().exporter(Exporter::named("right"));
/// assert!(domain.import_with("picture", &other, Deadline::NOW).is_err());
/// # drop(export);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Exporter {
    space: Option<u8>,
    process: Option<u32>,
    name: Option<String>,
}

impl Exporter {
    /// The member with this space. Numbers are used again after a member has gone.
    pub fn space(number: u8) -> Self {
        Self {
            space: Some(number),
            ..Self::default()
        }
    }

    /// The member of this process, by the id that the domain's host sees.
    pub fn process(id: u32) -> Self {
        Self {
            process: Some(id),
            ..Self::default()
        }
    }

    /// The members that call themselves so
    /// ([`Builder::space_name`](crate::Builder::space_name)). Names of more than 63 bytes are cut,
    /// so no member is found by one.
    pub fn named(name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..Self::default()
        }
    }

    /// Its space, if that is said.
    pub fn space_number(&self) -> Option<u8> {
        self.space
    }

    /// Its process, if that is said.
    pub fn process_id(&self) -> Option<u32> {
        self.process
    }

    /// The name that it has chosen, if that is said.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// What the host compares members with; `None` if no member can be so.
    pub(crate) fn pattern(&self) -> Option<Maker> {
        // Zero, which is no member's, would say nothing.
        let said = |number: u32| (number != 0).then_some(number);
        let numbers = Maker {
            space: match self.space {
                Some(space) => u8::try_from(said(space.into())?).ok()?,
                None => 0,
            },
            process: match self.process {
                Some(process) => said(process)?,
                None => 0,
            },
            ..Maker::ANY
        };
        match &self.name {
            Some(name) => numbers.named(name),
            None => Some(numbers),
        }
    }

    /// The member of an answer of the host's.
    pub(crate) fn from_maker(maker: &Maker) -> Self {
        Self {
            space: Some(maker.space).filter(|space| *space != 0),
            process: Some(maker.process).filter(|process| *process != 0),
            name: Some(maker.name())
                .filter(|name| !name.is_empty())
                .map(str::to_owned),
        }
    }
}

impl fmt::Display for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.as_ref().map(|name| format!("{name:?}"));
        let space = self.space.map(|space| format!("space {space}"));
        let process = self.process.map(|process| format!("process {process}"));
        let said: Vec<String> = [name, space, process].into_iter().flatten().collect();
        f.write_str(&said.join(", "))
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exporter({self})")
    }
}

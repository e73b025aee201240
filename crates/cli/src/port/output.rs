//! Writes received bytes to a file or to standard output.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use base64::display::Base64Display;
use base64::prelude::BASE64_STANDARD;
use portolan::Message;
use serde::{Serialize, Serializer};

use super::payload;
use crate::args::OutputArgs;
use crate::error::{CliError, Result};
use crate::json::Versioned;

/// What `--json` says of a message.
#[derive(Serialize)]
struct Described<'a> {
    /// As text; what is not text is replaced.
    header: Cow<'a, str>,
    header_hex: String,
    bytes: usize,
    extents: usize,
    /// Unless a file has them.
    #[serde(flatten)]
    data: Option<Data<'a>>,
}

/// A message's bytes.
#[derive(Serialize)]
struct Data<'a> {
    data_base64: Base64<'a>,
    /// If they are UTF-8.
    data_text: Option<&'a str>,
}

/// Encoded while it is written, however long it is.
struct Base64<'a>(&'a [u8]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(&Base64Display::new(self.0, &BASE64_STANDARD))
    }
}

/// Where received bytes go.
pub(super) struct Output<'a> {
    args: &'a OutputArgs,
    file: Option<(File, PathBuf)>,
}

impl<'a> Output<'a> {
    pub(super) fn open(args: &'a OutputArgs) -> Result<Self> {
        let open = |path: &PathBuf| {
            let file = File::create(path).map_err(|source| CliError::Output {
                path: path.clone(),
                source,
            })?;
            Ok::<_, CliError>((file, path.clone()))
        };
        let file = args.output.as_ref().map(open).transpose()?;
        Ok(Self { args, file })
    }

    pub(super) fn message(&mut self, message: &Message) -> Result<()> {
        if let Some((file, path)) = &mut self.file {
            payload::store(message, file).map_err(|source| CliError::Output {
                path: path.clone(),
                source,
            })?;
        }
        let mut stdout = io::stdout().lock();
        let printed = if self.args.json {
            self.describe(message, &mut stdout)
        } else if self.args.header_only {
            stdout
                .write_all(message.header())
                .and_then(|()| stdout.write_all(b"\n"))
        } else if self.file.is_none() {
            payload::store(message, &mut stdout)
        } else {
            Ok(())
        };
        printed.and_then(|()| stdout.flush()).map_err(|error| {
            if error.kind() == io::ErrorKind::BrokenPipe {
                portolan_measure::MeasureError::ReaderLeft.into()
            } else {
                CliError::system("writing to standard output")(error)
            }
        })
    }

    /// Writes a message as a line of JSON.
    fn describe(&self, message: &Message, to: &mut dyn Write) -> io::Result<()> {
        let header = message.header();
        let bytes = self.file.is_none().then(|| whole(message));
        let data = bytes.as_deref().map(|bytes| Data {
            data_base64: Base64(bytes),
            data_text: std::str::from_utf8(bytes).ok(),
        });
        let described = Versioned::new(Described {
            header: String::from_utf8_lossy(header),
            header_hex: header.iter().map(|b| format!("{b:02x}")).collect(),
            bytes: message.len(),
            extents: message.extents().len(),
            data,
        });
        let mut to = BufWriter::new(to);
        serde_json::to_writer(&mut to, &described)?;
        to.write_all(b"\n")?;
        to.flush()
    }
}

/// A message's bytes in one piece: where they lie, if that is one.
fn whole(message: &Message) -> Cow<'_, [u8]> {
    let mut slices = message.slices();
    match (slices.next(), slices.next()) {
        (None, _) => Cow::Borrowed(&[]),
        (Some(only), None) => Cow::Borrowed(only),
        (Some(_), Some(_)) => Cow::Owned(message.slices().collect::<Vec<_>>().concat()),
    }
}

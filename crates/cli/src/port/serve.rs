//! `portolan port serve`: a command answers each request.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::process::{Child, Command, Stdio};

use portolan::{Access, Domain, Extent, Message, PortOptions, ReceiveError, Request};

use super::{QUEUE, bind, deadline, join, payload};
use crate::args::ServeArgs;
use crate::error::{CliError, Result};

pub(super) fn run(args: &ServeArgs) -> Result<()> {
    let domain = join(&args.place, "serve")?;
    let options = PortOptions::named(&args.place.name)
        .queue(QUEUE)
        .synchronous();
    let mut port = bind(&domain, options)?;
    let mut served = 0;
    while args.count.is_none_or(|count| served < count) {
        let received = port.get_request(Access::Now, deadline(args.timeout));
        let request = received.map_err(|error| match error {
            ReceiveError::TimedOut => CliError::NothingCame {
                name: args.place.name.clone(),
            },
            other => CliError::library("receiving")(other),
        })?;
        if request.wants_reply() {
            served += 1;
            answer(&domain, request, &args.command)?;
        }
    }
    Ok(())
}

/// Runs the command with the request as its input; its output is the answer. A request
/// whose command fails is dropped, which its client is told.
fn answer(domain: &Domain, request: Request, command: &[String]) -> Result<()> {
    let (program, arguments) = command.split_first().ok_or_else(|| {
        // The command line asks for one at least.
        CliError::Refused("no command to answer with".to_owned())
    })?;
    let mut run = Command::new(program);
    run.args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // Else ours would pass for this request's.
    run.env_remove("PORTOLAN_HEADER");
    let header = request.message.header();
    if !header.contains(&0) {
        run.env("PORTOLAN_HEADER", OsStr::from_bytes(header));
    }
    let mut child = run.spawn().map_err(|source| CliError::Input {
        path: program.into(),
        source,
    })?;
    let output = converse(domain, &request.message, &mut child);
    if output.is_err() {
        let _ = child.kill();
    }
    let status = child
        .wait()
        .map_err(CliError::system("waiting for the command"))?;
    let extents = match output {
        Ok(extents) if status.success() => extents,
        Ok(_) => {
            eprintln!("portolan: {program}: {status}; the request is dropped");
            return Ok(());
        }
        Err(error) => {
            error.report();
            return Ok(());
        }
    };
    let mut message = Message::default();
    for extent in extents {
        if let Err(refused) = message.push(extent) {
            eprintln!("portolan: {}; the request is dropped", refused.error);
            return Ok(());
        }
    }
    if let Err(error) = request.reply(message) {
        eprintln!("portolan: nobody takes the answer: {error}");
    }
    Ok(())
}

/// Writes the request to the command while its output is read.
fn converse(domain: &Domain, request: &Message, child: &mut Child) -> Result<Vec<Extent>> {
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || match stdin {
            Some(mut stdin) => payload::store(request, &mut stdin),
            None => Ok(()),
        });
        let output = match stdout {
            Some(mut stdout) => payload::load(domain, &mut stdout, None),
            None => Ok(Vec::new()),
        };
        match writer.join() {
            // A command need not read all of its input.
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(CliError::system("writing to the command")(error))
            }
            _ => output,
        }
    })
}

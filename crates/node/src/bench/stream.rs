//! A bare rustls stream: one thread writes, one reads, over a TCP connection.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use portolan_node::Result;
use portolan_sys::machine;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};

use crate::{StreamArgs, refused, say, system};

/// Bytes of one call.
const CALL: usize = 256 * 1024;
/// The name in the certificate.
const NAME: &str = "localhost";

/// Both ends; the time of each lot of bytes.
pub(crate) fn run(args: &StreamArgs) -> Result<()> {
    let (client, server) = configs()?;
    let failed = || system("cannot connect over loopback");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed())?;
    let address = listener.local_addr().map_err(failed())?;
    let to = args.to;
    let receiver = std::thread::spawn(move || {
        machine::pin(to).map_err(system("cannot choose a processor"))?;
        receive(&listener, server)
    });
    machine::pin(args.from).map_err(system("cannot choose a processor"))?;
    let socket = TcpStream::connect(address).map_err(failed())?;
    socket.set_nodelay(true).map_err(failed())?;
    let name = ServerName::try_from(NAME).map_err(|why| refused("rustls")(&why))?;
    let session = ClientConnection::new(client, name).map_err(|why| refused("rustls")(&why))?;
    let mut stream = StreamOwned::new(session, socket);
    // As what waits to be measured, so that both are warm.
    send(&mut stream, CALL as u64)?;
    say("ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(system("cannot hear `portolan bench`"))?;
        let Ok(bytes) = line.trim().parse::<u64>() else {
            return Err(refused("a number of bytes")(&line));
        };
        let begun = Instant::now();
        send(&mut stream, bytes)?;
        say(&begun.elapsed().as_nanos().to_string())?;
    }
    drop(stream);
    // It has read to the end, or has said why not.
    let _ = receiver.join();
    Ok(())
}

/// Sends so many bytes, and waits until all have come.
fn send(stream: &mut StreamOwned<ClientConnection, TcpStream>, bytes: u64) -> Result<()> {
    let failed = || system("cannot send over rustls");
    let call = vec![7; CALL];
    stream.write_all(&bytes.to_le_bytes()).map_err(failed())?;
    let mut left = bytes;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(CALL).min(CALL);
        stream.write_all(&call[..part]).map_err(failed())?;
        left -= part as u64;
    }
    stream.flush().map_err(failed())?;
    stream.read_exact(&mut [0]).map_err(failed())
}

/// Receives lot after lot, and says each time that all of it has come.
fn receive(listener: &TcpListener, config: Arc<ServerConfig>) -> Result<()> {
    let failed = || system("cannot receive over rustls");
    let (socket, _) = listener.accept().map_err(failed())?;
    socket.set_nodelay(true).map_err(failed())?;
    let session = ServerConnection::new(config).map_err(|why| refused("rustls")(&why))?;
    let mut stream = StreamOwned::new(session, socket);
    let mut call = vec![0; CALL];
    let mut head = [0; 8];
    while stream.read_exact(&mut head).is_ok() {
        let mut left = u64::from_le_bytes(head);
        while left > 0 {
            let room = usize::try_from(left).unwrap_or(CALL).min(CALL);
            let read = stream.read(&mut call[..room]).map_err(failed())?;
            if read == 0 {
                return Err(failed()(std::io::ErrorKind::UnexpectedEof.into()));
            }
            left -= read as u64;
        }
        let said = stream.write_all(&[1]).and_then(|()| stream.flush());
        said.map_err(failed())?;
    }
    Ok(())
}

/// One certificate that signs itself, which the client believes; the provider and the version are
/// those of links between nodes.
fn configs() -> Result<(Arc<ClientConfig>, Arc<ServerConfig>)> {
    let wrong = refused("rustls");
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()]);
    let made = made.map_err(|why| wrong(&why))?;
    let certificate: CertificateDer<'static> = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der());
    let key = key.map_err(|why| wrong(&why))?;
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).map_err(|why| wrong(&why))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = &[&rustls::version::TLS13];
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|why| wrong(&why))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|why| wrong(&why))?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(|why| wrong(&why))?;
    Ok((Arc::new(client), Arc::new(server)))
}

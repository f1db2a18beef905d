//! Binding a listener, with the way out that `weir up` takes where a usual port is taken.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};

/// Connections that the kernel holds while they wait to be accepted.
const BACKLOG: u32 = 1024;

/// Binds `address`; where that port is taken and `port_fallback` is set, any free one. `prepare` sets what accepted
/// sockets inherit. Must be called within a tokio runtime.
pub fn bind(
    address: SocketAddr,
    port_fallback: bool,
    prepare: impl Fn(&TcpSocket) -> io::Result<()>,
) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = match listen(address, &prepare) {
        Err(error) if port_fallback && error.kind() == io::ErrorKind::AddrInUse => {
            listen(SocketAddr::new(address.ip(), 0), &prepare)?
        }
        outcome => outcome?,
    };
    let bound = listener.local_addr()?;
    Ok((listener, bound))
}

fn listen(address: SocketAddr, prepare: impl Fn(&TcpSocket) -> io::Result<()>) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restart binds the port that its predecessor's connections still linger on.
    socket.set_reuseaddr(true)?;
    prepare(&socket)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_taken_port_is_an_error_or_another_port() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (_held, taken) = bind(any, false, |_| Ok(())).unwrap();
        assert_eq!(bind(taken, false, |_| Ok(())).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let (_other, moved) = bind(taken, true, |_| Ok(())).unwrap();
        assert_ne!(moved, taken);
        assert!(bind(any, true, |_| Err(io::ErrorKind::Unsupported.into())).is_err());
    }
}

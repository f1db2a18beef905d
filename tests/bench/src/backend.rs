//! The backend: one process that is a worker to Weir's gateway and an OpenAI-compatible server to the others', and gives
//! both their tokens on one schedule.

mod openai_face;
mod worker_face;

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use weir_schemas::rpc::auth::InternalSecret;

use crate::Child;
use crate::schedule::Schedule;

/// Steps that may wait for a gateway; then the step loop waits too.
const WAITING_STEPS: usize = 1024;

/// Starts it; the child's address is that of its HTTP face.
pub(crate) async fn start(secret_file: PathBuf, config_url: &str) -> Child {
    Child::of_this_program(&["backend", secret_file.to_str().unwrap(), config_url]).await
}

/// A token of each sequence in so many milliseconds from now on; 0: at once.
pub(crate) async fn pace(backend: SocketAddr, interval_ms: u64) {
    let uri = format!("/pace/{interval_ms}");
    crate::load::put(backend, &uri, bytes::Bytes::new()).await;
}

/// The process itself.
pub(crate) async fn serve(secret_file: PathBuf, config_url: String) {
    let (schedule, step_loop) = Schedule::new();
    let listen = async || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let (rpc, http) = (listen().await, listen().await);
    let address = http.local_addr().unwrap();
    let secret = InternalSecret::from_file(&secret_file).unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(step_loop);
    tasks.spawn(worker_face::serve(schedule.clone(), rpc, secret, config_url));
    tasks.spawn(openai_face::serve(schedule, http));
    println!("{address}");
    until_abandoned().await;
}

/// Until standard input is closed: whoever started this process is gone.
pub(crate) async fn until_abandoned() {
    let read = || std::io::stdin().read_to_end(&mut Vec::new());
    drop(tokio::task::spawn_blocking(read).await);
}

//! Every internal RPC refuses a caller without the installation's secret, one with a tenant's key, and one with
//! another secret. A new RPC without an entry here fails the test.

use std::collections::BTreeSet;

use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};
use weir_schemas::rpc::auth::{InternalSecret, SECRET_METADATA_KEY};
use weir_schemas::rpc::{config, ledger, worker};
use weir_tests::installation::{Installation, repository};

/// Every RPC of schemas/proto, as `Service.Method`.
const COVERED: [&str; 5] =
    ["Config.Subscribe", "Ledger.Append", "Worker.GetModelText", "Worker.Session", "Worker.Watch"];

#[test]
fn every_rpc_has_an_entry() {
    let mut declared = BTreeSet::new();
    for file in std::fs::read_dir(repository().join("schemas/proto")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let mut service = "";
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("service ") {
                service = rest.trim_end_matches(" {");
            } else if let Some(rest) = line.strip_prefix("rpc ") {
                declared.insert(format!("{service}.{}", rest.split('(').next().unwrap()));
            }
        }
    }
    assert_eq!(declared, COVERED.map(str::to_owned).into());
}

/// The address that the installation's log names for a component.
fn addresses(installation: &Installation) -> Vec<String> {
    listening_ports(installation).into_iter().map(|port| format!("http://127.0.0.1:{port}")).collect()
}

/// Ports that the process listens on, from the kernel: no knowledge of ours about who listens where.
fn listening_ports(installation: &Installation) -> BTreeSet<u16> {
    let pid = installation.pid();
    let own: BTreeSet<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .collect();
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap();
    let mut ports = BTreeSet::new();
    for line in table.lines().skip(1) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields[3] == "0A" && own.contains(&format!("socket:[{}]", fields[9]));
        if listens {
            let (address, port) = fields[1].split_once(':').unwrap();
            assert_eq!(address, "0100007F", "everything binds 127.0.0.1");
            ports.insert(u16::from_str_radix(port, 16).unwrap());
        }
    }
    ports
}

/// What each RPC answers on this channel; `None` where the service is not served here.
async fn call_all(
    channel: &Channel,
    metadata: Option<(&'static str, String)>,
) -> Vec<(&'static str, Status)> {
    let attach = move |mut request: Request<()>| {
        if let Some((name, value)) = &metadata {
            request.metadata_mut().insert(*name, value.parse::<MetadataValue<_>>().unwrap());
        }
        Ok(request)
    };
    let channel = || channel.clone();
    let mut config = config::config_client::ConfigClient::with_interceptor(channel(), attach.clone());
    let mut ledger = ledger::ledger_client::LedgerClient::with_interceptor(channel(), attach.clone());
    let mut worker = worker::worker_client::WorkerClient::with_interceptor(channel(), attach);
    let mut outcomes = Vec::new();
    let mut note = |name, outcome: Result<(), Status>| {
        outcomes.push((name, outcome.err().unwrap_or_else(|| Status::ok("served"))));
    };
    note("Config.Subscribe", first(config.subscribe(tokio_stream::empty()).await).await);
    note("Ledger.Append", ledger.append(ledger::AppendRequest::default()).await.map(drop));
    note("Worker.Session", first(worker.session(tokio_stream::empty()).await).await);
    note("Worker.Watch", first(worker.watch(worker::WatchRequest::default()).await).await);
    note(
        "Worker.GetModelText",
        first(worker.get_model_text(worker::ModelTextRequest::default()).await).await,
    );
    outcomes
}

/// The outcome of a stream: a refusal may come as its head or in place of its first message.
async fn first<T>(answer: Result<Response<Streaming<T>>, Status>) -> Result<(), Status> {
    answer?.into_inner().message().await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_internal_is_served_without_the_secret() {
    let installation = Installation::start();
    let secret_file = installation.state_dir().join("internal_secret");
    let secret = std::fs::read_to_string(secret_file).unwrap().trim().to_owned();
    InternalSecret::new(&secret).unwrap();
    let bearer = |key: &str| Some(("authorization", format!("Bearer {}", installation.env[key])));
    let mut served = BTreeSet::new();
    for address in addresses(&installation) {
        let channel = Channel::from_shared(address.clone()).unwrap().connect_lazy();
        // With the secret each RPC is reached somewhere: the refusals below are not of a closed door.
        for (name, status) in call_all(&channel, Some((SECRET_METADATA_KEY, secret.clone()))).await {
            // Only the service itself answers so; other listeners of the process know no such path.
            let answered = [Code::Ok, Code::InvalidArgument, Code::NotFound, Code::FailedPrecondition];
            if !answered.contains(&status.code()) {
                continue;
            }
            served.insert(name.to_owned());
            for wrong in [
                None,
                bearer("WEIR_API_KEY"),
                bearer("WEIR_ADMIN_TOKEN"),
                Some((SECRET_METADATA_KEY, installation.env["WEIR_API_KEY"].clone())),
                Some((SECRET_METADATA_KEY, "f".repeat(secret.len()))),
            ] {
                let outcomes = call_all(&channel, wrong.clone()).await;
                let (_, status) = outcomes.iter().find(|(other, _)| *other == name).unwrap();
                assert_eq!(
                    status.code(),
                    Code::Unauthenticated,
                    "{name} at {address} with {:?}",
                    wrong.map(|(name, _)| name)
                );
            }
        }
    }
    assert_eq!(served, COVERED.map(str::to_owned).into());
}

//! A broker that asks who comes, on two listeners more: TLS with a SASL log-in, and TLS with a client's certificate.

use std::path::{Path, PathBuf};
use std::process::Command;

use weir_schemas::kafka::{RawKafka, SaslMechanism, Security};

use super::node::{Node, free_port};
use super::{PrivateKafka, new_home};

/// May log in by PLAIN, and do nothing further.
const POWERLESS: &str = "weir";
/// May log in by SCRAM-SHA-512, and do anything.
const BY_SCRAM: &str = "sender";
/// Name in the certificate of the client that may do anything.
const BY_CERTIFICATE: &str = "reader";

/// One broker, and how to log in there.
#[derive(Debug)]
pub struct GuardedKafka {
    pub broker: PrivateKafka,
    sasl_listener: u16,
    certificate_listener: u16,
    password_file: PathBuf,
}

impl GuardedKafka {
    /// All its users have the same password.
    pub fn start(password: &str) -> Self {
        let home = new_home();
        let server = Identity::make(&home, "broker", &["-addext", "subjectAltName=IP:127.0.0.1"]);
        let reader = Identity::make(&home, BY_CERTIFICATE, &[]);
        Identity::make(&home, "stranger", &[]);
        let pair = [&server.key, &server.certificate].map(|path| std::fs::read_to_string(path).unwrap());
        std::fs::write(home.join("broker.pem"), pair.concat()).unwrap();
        let (sasl_listener, certificate_listener) = (free_port().unwrap(), free_port().unwrap());
        let broker = PrivateKafka::start_in(home, |node| {
            settings(node, (sasl_listener, certificate_listener), password, &reader.certificate)
        });
        let guarded = Self {
            sasl_listener,
            certificate_listener,
            password_file: broker.home().join("password"),
            broker,
        };
        std::fs::write(&guarded.password_file, password).unwrap();
        guarded.add_scram_user(password);
        guarded
    }

    /// Settings of the user who may do nothing.
    pub fn by_plain(&self) -> RawKafka {
        self.by_sasl(SaslMechanism::Plain, POWERLESS)
    }

    /// Settings of the user who may do anything.
    pub fn by_scram(&self) -> RawKafka {
        self.by_sasl(SaslMechanism::ScramSha512, BY_SCRAM)
    }

    /// Settings of the client with a certificate that the broker knows.
    pub fn by_certificate(&self) -> RawKafka {
        self.with_identity(BY_CERTIFICATE)
    }

    /// Settings of a client with a certificate of its own making.
    pub fn by_unknown_certificate(&self) -> RawKafka {
        self.with_identity("stranger")
    }

    fn by_sasl(&self, sasl_mechanism: SaslMechanism, username: &str) -> RawKafka {
        RawKafka {
            sasl_mechanism,
            sasl_username: username.into(),
            sasl_password_file: self.password_file.clone(),
            ..self.at(self.sasl_listener)
        }
    }

    fn with_identity(&self, name: &str) -> RawKafka {
        let Identity { key, certificate } = Identity::of(self.broker.home(), name);
        RawKafka { certificate_file: certificate, key_file: key, ..self.at(self.certificate_listener) }
    }

    fn at(&self, listener: u16) -> RawKafka {
        RawKafka {
            brokers: format!("127.0.0.1:{listener}"),
            security: Security::Tls,
            ca_file: Identity::of(self.broker.home(), "broker").certificate,
            ..RawKafka::default()
        }
    }

    /// As an operator does.
    fn add_scram_user(&self, password: &str) {
        let mut configs = self.broker.node.java();
        configs.args(["kafka.admin.ConfigCommand", "--bootstrap-server", &self.broker.brokers()]);
        configs.args(["--alter", "--entity-type", "users", "--entity-name", BY_SCRAM, "--add-config"]);
        configs.arg(format!("SCRAM-SHA-512=[password={password}]"));
        run(&mut configs);
    }
}

/// A private key, and a certificate that stands for itself. Both are PEM files.
struct Identity {
    key: PathBuf,
    certificate: PathBuf,
}

impl Identity {
    fn of(home: &Path, name: &str) -> Self {
        Self { key: home.join(format!("{name}.key")), certificate: home.join(format!("{name}.crt")) }
    }

    fn make(home: &Path, name: &str, more: &[&str]) -> Self {
        let identity = Self::of(home, name);
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        openssl.args(["-days", "2", "-subj", &format!("/CN={name}")]).args(more);
        openssl.arg("-keyout").arg(&identity.key).arg("-out").arg(&identity.certificate);
        run(&mut openssl);
        identity
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said));
}

/// Later lines stand for earlier ones of the same name.
fn settings(node: &Node, (sasl, certificate): (u16, u16), password: &str, known: &Path) -> String {
    let (plain, controller) = (node.port, node.controller_port);
    let own = node.home().join("broker.pem");
    let (own, known) = (own.display(), known.display());
    format!(
        "listeners=PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},\
         GUARDED://127.0.0.1:{sasl},CERTIFICATE://127.0.0.1:{certificate}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{plain},\
         GUARDED://127.0.0.1:{sasl},CERTIFICATE://127.0.0.1:{certificate}\n\
         listener.security.protocol.map=\
         CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,GUARDED:SASL_SSL,CERTIFICATE:SSL\n\
         ssl.keystore.type=PEM\n\
         ssl.keystore.location={own}\n\
         listener.name.guarded.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512\n\
         listener.name.guarded.plain.sasl.jaas.config=\
         org.apache.kafka.common.security.plain.PlainLoginModule required user_{POWERLESS}=\"{password}\";\n\
         listener.name.guarded.scram-sha-512.sasl.jaas.config=\
         org.apache.kafka.common.security.scram.ScramLoginModule required;\n\
         listener.name.certificate.ssl.client.auth=required\n\
         listener.name.certificate.ssl.truststore.type=PEM\n\
         listener.name.certificate.ssl.truststore.location={known}\n\
         authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n\
         super.users=User:ANONYMOUS;User:{BY_SCRAM};User:CN={BY_CERTIFICATE}\n"
    )
}

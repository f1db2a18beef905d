//! Whether Postgres is there, found out beside the requests: none of them waits to learn that it is not, and each can
//! say why.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, PgConnection};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Between two questions to one that answers.
const BEAT: Duration = Duration::from_millis(500);
/// Between two attempts to reach one that does not.
const RETRY: Duration = Duration::from_millis(200);
/// As long as a request would wait for a connection: a busy machine is not an outage.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps `away` true to life, for ever: `None`, or why Postgres is not there.
pub(super) async fn keep(options: PgConnectOptions, away: watch::Sender<Option<String>>) {
    loop {
        let error = match within(options.connect()).await {
            Ok(connection) => {
                away.send_replace(None);
                first_failure(connection).await
            }
            Err(error) => error,
        };
        away.send_replace(Some(error.to_string()));
        sleep(RETRY).await;
    }
}

async fn first_failure(mut connection: PgConnection) -> sqlx::Error {
    loop {
        sleep(BEAT).await;
        if let Err(error) = within(connection.ping()).await {
            return error;
        }
    }
}

async fn within<T>(answer: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    let silent = || sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, "it does not answer"));
    timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| Err(silent()))
}

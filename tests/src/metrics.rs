//! Prometheus' text form, as far as a test needs it.

use crate::installation::Installation;

/// One scrape.
#[derive(Debug)]
pub struct Scrape(String);

impl Scrape {
    /// Of the whole process.
    pub async fn of(installation: &Installation) -> Self {
        Self::at(&installation.env["WEIR_METRICS_URL"]).await
    }

    /// Of the process that answers at this URL.
    pub async fn at(url: &str) -> Self {
        let response = reqwest::get(url).await.unwrap();
        Self(response.error_for_status().unwrap().text().await.unwrap())
    }

    /// The sum of all series of this name whose labels contain `labels`; panics where there is none.
    pub fn sum(&self, name: &str, labels: &str) -> f64 {
        let found = self.find(name, labels);
        found.unwrap_or_else(|| panic!("no series {name} with {labels} in:\n{}", self.0))
    }

    /// The same; nothing where there is none.
    pub fn find(&self, name: &str, labels: &str) -> Option<f64> {
        let mut sum = None;
        for line in self.0.lines().filter(|line| !line.starts_with('#')) {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (own, rest) = series.split_once('{').unwrap_or((series, ""));
            if own == name && rest.contains(labels) {
                sum = Some(sum.unwrap_or(0.0) + value.parse::<f64>().unwrap());
            }
        }
        sum
    }
}

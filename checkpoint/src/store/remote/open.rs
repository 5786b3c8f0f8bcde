//! The cache of open stores, which are set up from environment variables.

use super::request::read_deadline;
use super::{Remote, root};
use crate::error::{Error, Result};
use crate::store::{Store, scheme};
use ::object_store::memory::InMemory;
use ::object_store::{self, ObjectStore};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of cached stores. The limit exists because names come from clients, and each store holds
/// connections.
const MAX_CACHED_STORES: usize = 64;

/// The root of the process's single in-memory store; the rest of a name is the file's key.
const MEMORY: &str = "memory:/";

/// Returns the store of the file `path`, or `None` if no built-in store has the scheme of `path`.
pub(in crate::store) fn of(path: &Path) -> Result<Option<Arc<dyn Store>>> {
    static OPEN: Mutex<BTreeMap<String, Arc<Remote>>> = Mutex::new(BTreeMap::new());
    let (Some(scheme), Some(root)) = (scheme(path), root(path)) else { return Ok(None) };
    let root = if scheme == "memory" { MEMORY } else { root };
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = open.get(root) {
        return Ok(Some(store.clone()));
    }
    let Some((_, build)) = BUILDERS.iter().find(|(schemes, _)| schemes.contains(&scheme)) else {
        return Ok(None);
    };
    read_deadline()?;
    let inner = build(root).map_err(|e| Error::invalid(format!("{}: store {root}: {e}", path.display())))?;
    if open.len() >= MAX_CACHED_STORES {
        open.retain(|root, _| root == MEMORY);
    }
    let store = Arc::new(Remote { root: root.to_owned(), inner });
    open.insert(root.to_owned(), store.clone());
    Ok(Some(store))
}

type BuildResult = object_store::Result<Arc<dyn ObjectStore>>;

/// A function that sets up the store with the given root.
type StoreBuilder = fn(&str) -> BuildResult;

/// Functions that set up stores, each with the schemes that select the store.
const BUILDERS: &[(&[&str], StoreBuilder)] = &[
    (&["memory"], |_| shared(Ok(InMemory::new()))),
    #[cfg(feature = "store-s3")]
    (&["s3", "s3a"], |root| {
        shared(object_store::aws::AmazonS3Builder::from_env().with_url(root).with_retry(retries()).build())
    }),
    #[cfg(feature = "store-gcs")]
    (&["gs"], |root| {
        let builder = object_store::gcp::GoogleCloudStorageBuilder::from_env();
        shared(builder.with_url(root).with_retry(retries()).build())
    }),
    #[cfg(feature = "store-azure")]
    (&["az", "abfs", "abfss"], |root| {
        let builder = object_store::azure::MicrosoftAzureBuilder::from_env();
        shared(builder.with_url(root).with_retry(retries()).build())
    }),
    #[cfg(feature = "store-http")]
    (&["http", "https"], |root| {
        let options = object_store::ClientOptions::new().with_allow_http(true);
        let builder = object_store::http::HttpBuilder::new().with_client_options(options);
        shared(builder.with_url(root).with_retry(retries()).build())
    }),
    #[cfg(feature = "store-hdfs")]
    (&["hdfs"], |root| {
        let failed = |e: Error| object_store::Error::Generic { store: "hdfs", source: Box::new(e) };
        let runtime = super::request::runtime().map_err(failed)?;
        let builder = hdfs_native_object_store::HdfsObjectStoreBuilder::new().with_url(root);
        shared(builder.with_io_runtime(runtime.handle().clone()).build())
    }),
];

fn shared<S: ObjectStore>(built: object_store::Result<S>) -> BuildResult {
    built.map(|store| Arc::new(store) as Arc<dyn ObjectStore>)
}

/// Returns a retry policy that starts attempts only in the first half of a request's time, so that the error
/// reports why they failed.
#[cfg(any(feature = "store-s3", feature = "store-gcs", feature = "store-azure", feature = "store-http"))]
fn retries() -> object_store::RetryConfig {
    let retry_timeout = super::request::deadline() / 2;
    object_store::RetryConfig { retry_timeout, ..Default::default() }
}

//! Leader epochs: numbers that order the leaders of a training job. Each replica that is elected as the job's chief
//! becomes its leader, with a higher number than the leader before it. Only the leader with the highest number leads.

use crate::pb;
use std::fmt;

/// The epoch of a training job's leader, the elected chief. It is sent as TensorFlow's `SessionMetadata`: in the
/// `ConfigProto` of the client's session, and in the `ConfigProto` of the `ServerDef` with which a master opens the
/// session on each worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Name of the job that is led; not empty.
    pub name: String,
    pub number: i64,
}

impl Epoch {
    /// Returns the leader epoch that a session's options contain, if they contain one.
    pub fn of(config: &pb::ConfigProto) -> Option<Epoch> {
        let metadata = config.experimental.as_ref()?.session_metadata.as_ref()?;
        let is_named = !metadata.name.is_empty();
        is_named.then(|| Epoch { name: metadata.name.clone(), number: metadata.version })
    }

    /// Writes the epoch into the options of a session.
    pub fn write(self, config: &mut pb::ConfigProto) {
        let metadata = pb::SessionMetadata { name: self.name, version: self.number };
        config.experimental.get_or_insert_default().session_metadata = Some(metadata);
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {} of '{}'", self.number, self.name)
    }
}

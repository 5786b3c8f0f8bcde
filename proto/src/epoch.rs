//! Who leads: of all sessions of one name, those of the highest epoch. Its number rises whenever another begins to lead.

use crate::pb;
use std::fmt;

/// The turn of a leader. It travels as TensorFlow's `SessionMetadata`: in the `ConfigProto` of the client's session,
/// and in that of the `ServerDef` with which a master opens the session on each worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Of what is led; not empty.
    pub name: String,
    pub number: i64,
}

impl Epoch {
    /// The epoch of a session with these options, if it has one.
    pub fn of(config: &pb::ConfigProto) -> Option<Epoch> {
        let metadata = config.experimental.as_ref()?.session_metadata.as_ref()?;
        let is_named = !metadata.name.is_empty();
        is_named.then(|| Epoch { name: metadata.name.clone(), number: metadata.version })
    }

    /// Writes it into the options of a session.
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

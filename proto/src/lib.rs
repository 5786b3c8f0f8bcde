//! The wire protocol: messages and services, generated from `protos/`; conversions to and from the types of
//! `graph`; and the interface between master and worker, which is the same within a process and over the
//! network.
//!
//! The only decisions made in this crate are the interpretations of options that master and worker share
//! ([`Rewrites`]). Names are TensorFlow's, so that both ends of a cluster may be TensorFlow or this project.

#![forbid(unsafe_code)]

pub mod channel;
pub mod cluster;
pub mod codec;
pub mod convert;
pub mod deadline;
mod epoch;
pub mod event_stream;
pub mod fields;
pub mod grpc;
pub mod link;
pub mod pieces;
mod recent_ids;
pub mod remote;
mod rewrites;
mod status;
pub mod step_ids;

pub use cluster::Cluster;
pub use epoch::Epoch;
pub use recent_ids::RecentIds;
pub use remote::RemoteWorker;
pub use rewrites::{Rewrite, Rewrites};
pub use status::{DERIVED_STATUS, Status, WORKER_POSSIBLY_RESTARTED};

/// Messages of the package `tensorflow`, and its services as modules for client and server.
#[allow(clippy::all, deprecated)]
pub mod pb {
    include!("generated/tensorflow.rs");

    /// Status codes.
    pub mod error {
        include!("generated/tensorflow.error.rs");
    }

    /// Payloads of statuses between tasks.
    pub mod distributed_runtime {
        include!("generated/tensorflow.distributed_runtime.rs");
    }

    /// Packages below `tensorflow.core`.
    pub mod core {
        /// Payloads that name the component that failed.
        pub mod platform {
            include!("generated/tensorflow.core.platform.rs");
        }
    }
}

/// Messages and service by which a standby replicates the process that serves its task. They are specific to
/// this project.
#[allow(clippy::all)]
pub mod replication {
    include!("generated/anabranch.rs");
}

/// Messages of TensorFlow that the messages of [`replication`] refer to.
mod tensorflow {
    pub(crate) use crate::pb::{DataType, TensorProto, TensorShapeProto};
}

/// Packages below `google`.
pub mod google {
    /// The well-known types that messages of [`pb`](crate::pb) refer to.
    pub mod protobuf {
        include!("generated/google.protobuf.rs");
    }
}

/// Clients and servers of MasterService and WorkerService, and the traits that a server implements.
pub mod service {
    pub use crate::pb::{
        master_service_client::MasterServiceClient,
        master_service_server::{MasterService, MasterServiceServer},
        worker_service_client::WorkerServiceClient,
        worker_service_server::{WorkerService, WorkerServiceServer},
    };
}

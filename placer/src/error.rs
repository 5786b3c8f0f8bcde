//! Errors of placement, of a run's feeds and fetches, and of partitioning.

use graph::Code;
use std::fmt;

/// The error of this crate. Its messages are TensorFlow's and contain the `{{node …}}` tags that TensorFlow's
/// clients turn into source lines.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Graph(#[from] graph::Error),

    #[error("No devices are registered")]
    NoDevices,

    #[error("{}", located(node, no_kernel(node, op, attrs, device_types, kernels)))]
    NoKernel { node: String, op: String, attrs: Box<str>, device_types: Box<str>, kernels: Box<str> },

    #[error("{}", located(node, format!("Cannot assign a device for operation {node}: {reason}")))]
    Unplaceable { node: String, reason: String },

    #[error("{}", located(node, format!(
        "Cannot colocate nodes {{{{colocation_node {node}}}}} and {{{{colocation_node {with}}}}}{reason}"
    )))]
    Colocation { node: String, with: String, reason: String },

    #[error(
        "Cannot place the graph because a reference or resource edge connects colocation groups with \
         incompatible {kind} devices: {from} vs {to}. The edge src node is name='{source_node}' \
         (op='{source_op}'), and the dst node is name='{node}' (op='{op}').", from = devices[0], to = devices[1]
    )]
    IncompatibleEdge {
        kind: Pin,
        /// Device specifications of the source's group and of the destination's group.
        devices: Box<[String; 2]>,
        source_node: Box<str>,
        source_op: &'static str,
        node: Box<str>,
        op: &'static str,
    },

    #[error("{}", located(node, format!(
        "Assigned device '{device}' does not match any device. Devices: [{devices}]"
    )))]
    AssignedDevice { node: String, device: String, devices: String },

    #[error("{}", located(node, format!(
        "Assigned device '{device}' does not have registered OpKernel support for {op}"
    )))]
    AssignedKernel { node: String, device: String, op: String },

    #[error("{}", located(node, format!("Missing device name in: {{{{node {node}}}}}")))]
    MissingDevice { node: String },

    #[error("{}", located(node, format!(
        "{{{{node {node}}}}} is placed on '{device}', which is not among the devices [{devices}]"
    )))]
    UnknownDevice { node: String, device: String, devices: String },

    #[error("{}", located(node, format!(
        "The edge from {{{{node {source_node}}}}} to {{{{node {node}}}}} crosses devices inside loop '{frame}', \
         which has no control loop there"
    )))]
    LoopCrosses { node: String, source_node: String, frame: String },

    #[error("A cross-device loop must have a pivot predicate: {frame}")]
    LoopWithoutPivot { frame: String },

    #[error("{}", located(node, format!(
        "{{{{node {node}}}}} takes a reference to {{{{node {source_node}}}}}, which is on another device"
    )))]
    RefCrosses { node: String, source_node: String },

    #[error("Must specify at least one target to fetch or execute.")]
    NothingToRun,

    #[error("Endpoint \"{endpoint}\" fed more than once.")]
    FedTwice { endpoint: String },

    #[error("{endpoint} is both fed and fetched.")]
    FedAndFetched { endpoint: String },

    #[error("FeedInputs: unable to find feed output {endpoint}")]
    FeedNotFound { endpoint: String },

    #[error("FeedInputs: {endpoint} should have output index < {outputs}")]
    FeedIndex { endpoint: String, outputs: usize },

    #[error("FetchOutputs node {endpoint}: not found")]
    FetchNotFound { endpoint: String },

    #[error("FetchOutputs {endpoint}: output index too large, must be < {outputs}")]
    FetchIndex { endpoint: String, outputs: usize },

    /// Names of the missing nodes, each followed by a space.
    #[error("PruneForTargets: Some target nodes not found: {names}")]
    TargetsNotFound { names: String },

    #[error("{message}")]
    Invalid { message: String },
}

/// The reason why a reference or resource edge may not move a colocation group to another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// A user requested the device for a node of the group that creates state.
    Resource,
    /// An earlier placement assigned the group's device.
    Assigned,
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pin::Resource => "resource",
            Pin::Assigned => "assigned",
        })
    }
}

impl Error {
    /// Returns the status code of the error.
    pub fn code(&self) -> Code {
        match self {
            Error::Graph(error) => error.code(),
            Error::NoDevices => Code::FailedPrecondition,
            Error::AssignedDevice { .. } | Error::AssignedKernel { .. } => Code::Internal,
            Error::FeedNotFound { .. } | Error::FetchNotFound { .. } | Error::TargetsNotFound { .. } => {
                Code::NotFound
            }
            _ => Code::InvalidArgument,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::Invalid { message: message.into() }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

fn no_kernel(node: &str, op: &str, attrs: &str, device_types: &str, kernels: &str) -> String {
    format!(
        "No OpKernel was registered to support Op '{op}' used by {{{{node {node}}}}} with these attrs: [{attrs}]\n\
         Registered devices: [{device_types}]\nRegistered kernels:\n{kernels}"
    )
}

/// Appends the node's name to the message. The name is tagged unless the message has the tag already, because
/// clients expand every tag into a source line.
fn located(node: &str, message: String) -> String {
    let tag = format!("{{{{node {node}}}}}");
    if message.contains(&tag) {
        format!("{message}\n\t [[{node}]]")
    } else {
        format!("{message}\n\t [[{tag}]]")
    }
}

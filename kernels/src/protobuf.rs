//! Kernels that convert between tensors and messages of protocol buffers whose types are known only when a graph is
//! registered.

mod budget;
mod decode;
mod descriptor;
mod encode;
mod escape;
mod json;
mod message;
mod text;
mod wire;

use self::budget::Budget;
use self::descriptor::{Field, Kind, MessageType, Pool};
use bytes::Bytes;
use checkpoint::store;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::tensor::memory_limit;
use graph::{DType, Tensor};
use std::path::Path;
use std::sync::{Arc, OnceLock};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("DecodeProtoV2", &[], decode::decode),
    KernelDef::of("EncodeProto", &[], encode::encode),
    KernelDef::of("DecodeJSONExample", &[], |_| {
        Kernel::sync(|ctx| {
            let texts = ctx.input(0)?;
            let budget = budget_of(ctx);
            budget.take(texts.num_elements().saturating_mul(size_of::<Bytes>()))?;
            let examples =
                texts.as_strings()?.iter().map(|text| json::example(text, &budget).map(Bytes::from));
            let shape = texts.shape().clone();
            ctx.set_output(0, Tensor::strings(examples.collect::<Result<_>>()?, shape)?);
            Ok(())
        })
    }),
];

/// The messages that `local://` names: those of `proto/protos/` and of TensorFlow's examples. The file is written by `UPDATE_PROTOS=1 cargo test -p anabranch-proto`.
const LOCAL: &[u8] = include_bytes!("protobuf/local.binpb");

/// The type of the messages that a kernel reads or writes, with the other types of its files.
struct Types {
    pool: Arc<Pool>,
    name: String,
}

impl Types {
    /// Returns the types that the attributes `descriptor_source` and `message_type` name.
    fn of(init: &KernelInit<'_>) -> Result<Types> {
        let pool = pool_of(&init.attr::<Bytes>("descriptor_source")?)?;
        let types = Types { pool, name: init.attr("message_type")? };
        types.message()?;
        Ok(types)
    }

    fn message(&self) -> Result<&MessageType> {
        let found = self.pool.message(&self.name);
        found.ok_or_else(|| Error::invalid(format!("No descriptor found for message type {}", self.name)))
    }

    /// Returns a field by name; if `with_extensions`, also an extension by its full name.
    fn field(&self, name: &[u8], with_extensions: bool) -> Result<&Field> {
        let name = String::from_utf8_lossy(name);
        let found = self.message()?.field_named(&name).filter(|field| with_extensions || !field.is_extension);
        found.ok_or_else(|| Error::invalid(format!("Unknown field: {name} in message type {}", self.name)))
    }
}

/// Returns the types of a source: `local://` or nothing for TensorFlow's own messages, `bytes://` followed by a serialized
/// `FileDescriptorSet`, or the path of a file with one.
fn pool_of(source: &[u8]) -> Result<Arc<Pool>> {
    static LOCAL_POOL: OnceLock<Arc<Pool>> = OnceLock::new();
    let unknown = || {
        let shown = String::from_utf8_lossy(&source[..source.len().min(100)]);
        Error::invalid(format!(
            "descriptor_source is neither local://, nor bytes:// with a serialized FileDescriptorSet, nor a file: {shown}"
        ))
    };
    if matches!(source, b"" | b"local://") {
        if let Some(pool) = LOCAL_POOL.get() {
            return Ok(pool.clone());
        }
        let pool = Arc::new(Pool::read(LOCAL).ok_or_else(unknown)??);
        return Ok(LOCAL_POOL.get_or_init(|| pool).clone());
    }
    if let Some(set) = source.strip_prefix(b"bytes://") {
        return Ok(Arc::new(Pool::read(set).ok_or_else(unknown)??));
    }
    let path = std::str::from_utf8(source).map_err(|_| unknown())?;
    if !store::exists(Path::new(path)).unwrap_or(false) {
        return Err(unknown());
    }
    let set = store::read(Path::new(path))?;
    let invalid = || Error::invalid(format!("descriptor_source contains invalid FileDescriptorSet: {path}"));
    Ok(Arc::new(Pool::read(&set).ok_or_else(invalid)??))
}

/// Returns the budget of a kernel's run: the memory limit, and the cancellation of the step.
fn budget_of<'a>(ctx: &KernelContext<'a>) -> Budget<'a> {
    Budget::new(memory_limit(), &ctx.step().cancellation)
}

/// Returns whether tensors of a dtype hold values of fields of a type.
fn is_compatible(kind: Kind, dtype: DType) -> bool {
    match kind {
        Kind::Double => dtype == DType::Double,
        Kind::Float => matches!(dtype, DType::Float | DType::Double),
        Kind::Int64 | Kind::SFixed64 | Kind::SInt64 => dtype == DType::Int64,
        Kind::UInt64 | Kind::Fixed64 => dtype == DType::UInt64,
        Kind::Int32 | Kind::SFixed32 | Kind::SInt32 => matches!(dtype, DType::Int32 | DType::Int64),
        Kind::UInt32 | Kind::Fixed32 => matches!(dtype, DType::UInt32 | DType::UInt64),
        Kind::Bool => dtype == DType::Bool,
        Kind::Enum => dtype == DType::Int32,
        Kind::String | Kind::Bytes | Kind::Message | Kind::Group => dtype == DType::String,
    }
}

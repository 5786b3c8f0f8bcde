//! The op table: all ops with their signatures, shape inference and gradients. Each file holds one family of ops;
//! adding an op means adding a row to its family's slice.

mod accumulator;
mod activation;
mod audio;
mod barrier;
mod batch;
mod bessel;
pub mod bias;
mod binary;
mod boxes;
mod broadcast;
mod candidate;
mod cast;
mod check;
mod checkpoint;
mod clustering;
mod codec;
pub(crate) mod collective;
mod color;
mod compare;
pub(crate) mod complex;
mod composite;
mod concat;
pub mod constant;
mod control_flow;
pub mod conv;
mod csr_matrix;
mod ctc;
mod dataset_batch;
mod dataset_compression;
mod dataset_function;
mod dataset_memory;
mod dataset_options;
mod dataset_query;
mod dataset_source;
mod dataset_stats;
mod dataset_storage;
mod dataset_transform;
mod debug;
mod diagonal;
mod edit_distance;
pub mod einsum;
pub mod fft;
mod file;
mod functional;
mod fused;
mod gather;
mod generator;
mod histogram;
mod identity;
mod iterator;
mod linalg;
mod matmul;
pub mod morphology;
mod mutex;
mod nccl;
pub mod normalization;
mod optional;
mod pad;
mod parsing;
mod partition;
pub mod pool;
mod projection;
mod protobuf;
mod quantize;
mod quantized;
mod quantized_fused;
mod queue;
pub mod ragged;
mod random;
mod reader;
mod recurrent;
mod reduce;
mod regression;
mod resize;
mod resource;
mod scatter;
mod segment;
mod select;
mod sequence;
mod session_tensor;
mod set;
pub mod shape;
pub mod slice;
mod softmax;
pub mod space;
mod sparse;
mod sparse_cross;
mod sparse_segment;
pub mod spec;
mod special;
mod special_unary;
mod stack;
mod staging;
mod stateless_random;
mod string;
mod summary;
mod summary_writer;
mod table;
mod tensor_array;
mod tensor_list;
mod tensor_map;
mod topk;
mod training;
mod transfer;
pub mod transpose;
mod unary;
mod unicode;
mod uniform_quantized;
mod unique;
mod variable;
pub mod window;

use crate::attr::{Attrs, FromAttr};
use crate::builder::{Forward, Scope};
use crate::dtype::{DType, PortType};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::node::Node;
use crate::tensor::Tensor;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use spec::{Arg, ArgType, AttrSpec};
use std::fmt;
use std::sync::OnceLock;

/// Builds the list of op families, each with the name of its source file.
macro_rules! families {
    ($($family:ident),* $(,)?) => {
        &[$((stringify!($family), $family::OPS)),*]
    };
}

const FAMILIES: &[(&str, &[OpDef])] = families! {
    accumulator,
    activation,
    audio,
    barrier,
    batch,
    bessel,
    bias,
    binary,
    boxes,
    candidate,
    cast,
    check,
    checkpoint,
    clustering,
    codec,
    collective,
    color,
    compare,
    complex,
    composite,
    concat,
    constant,
    control_flow,
    conv,
    debug,
    diagonal,
    edit_distance,
    einsum,
    fft,
    csr_matrix,
    ctc,
    dataset_batch,
    dataset_compression,
    dataset_function,
    dataset_memory,
    dataset_options,
    dataset_query,
    dataset_source,
    dataset_stats,
    dataset_storage,
    dataset_transform,
    file,
    functional,
    fused,
    gather,
    generator,
    histogram,
    identity,
    linalg,
    iterator,
    matmul,
    morphology,
    mutex,
    nccl,
    normalization,
    optional,
    pad,
    parsing,
    partition,
    pool,
    projection,
    protobuf,
    quantize,
    quantized,
    quantized_fused,
    queue,
    ragged,
    random,
    reader,
    recurrent,
    reduce,
    regression,
    resize,
    resource,
    scatter,
    segment,
    select,
    sequence,
    session_tensor,
    set,
    shape,
    slice,
    softmax,
    space,
    sparse,
    sparse_cross,
    sparse_segment,
    special,
    special_unary,
    stack,
    staging,
    stateless_random,
    string,
    summary,
    summary_writer,
    table,
    tensor_array,
    tensor_list,
    tensor_map,
    topk,
    training,
    transfer,
    transpose,
    unary,
    unicode,
    uniform_quantized,
    unique,
    variable,
};

/// The families with ops that may wait for something other than their inputs.
const WAITING: &[&str] = &[
    "accumulator",
    "barrier",
    "batch",
    "collective",
    "dataset_function",
    "dataset_query",
    "debug",
    "iterator",
    "mutex",
    "nccl",
    "queue",
    "reader",
    "staging",
];

/// The definition of one op: a row of the op table. Signatures are written in the notation of [`spec`].
#[derive(Clone, Copy)]
pub struct OpDef {
    pub name: &'static str,
    pub inputs: &'static [&'static str],
    pub outputs: &'static [&'static str],
    pub attrs: &'static [&'static str],
    pub infer: InferFn,
    pub gradient: Gradient,
    pub role: Role,
    pub traits: Traits,
    /// True for an op that TensorFlow does not have: only graphs built with this project use it, and only our servers
    /// run it.
    pub is_extension: bool,
}

impl OpDef {
    /// The default values of the fields that an op table row leaves out: `OpDef { name: "NoOp", ..OpDef::NEW }`.
    pub const NEW: OpDef = OpDef {
        name: "",
        inputs: &[],
        outputs: &[],
        attrs: &[],
        infer: unknown_shapes,
        gradient: Gradient::None,
        role: Role::Compute,
        traits: Traits::NONE,
        is_extension: false,
    };
}

/// A shape inference function, which sets the shapes of a node's outputs from those of its inputs.
pub type InferFn = fn(&mut Infer<'_>) -> Result<()>;

/// A gradient rule, which adds the nodes of a gradient. It takes the gradients that arrived at the outputs (`None`
/// for an output without one) and returns one gradient per input (`None` if no gradient flows to the input).
pub type GradientFn = fn(&Scope, &Forward, &[Option<Output>]) -> Result<Vec<Option<Output>>>;

/// The rule by which gradients flow back through an op.
#[derive(Clone, Copy)]
pub enum Gradient {
    /// Gradients are built by this function.
    Defined(GradientFn),
    /// No gradient flows back through the op by its nature: a constant, a variable, a comparison, a shape.
    Leaf,
    /// No gradient rule exists; building a gradient through the op is an error that names the op.
    None,
}

/// The executor's treatment of an op: `Compute` for an op that runs a kernel, and a special role for each transfer and
/// control-flow op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    Compute,
    Send,
    Recv,
    Switch,
    Merge,
    Enter,
    Exit,
    NextIteration,
    LoopCond,
    ControlTrigger,
}

/// Properties of an op that passes and the placer use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// True if the op has state or side effects, so it must not be folded, merged or duplicated.
    pub stateful: bool,
    /// True if the order of the inputs does not affect the result.
    pub commutative: bool,
    /// True if the op sums its inputs.
    pub aggregate: bool,
    /// True if the op accepts a reference to a variable that has no value yet.
    pub allows_uninitialized_input: bool,
    /// True if the op forwards a reference: a reader of the output sees the variable's value at the time of the read,
    /// including later writes.
    pub passes_reference: bool,
    /// True if the op reads only the shape of its first input, or only a property of a variant in it, but no elements.
    /// The op runs on the device of the first input.
    pub metadata: bool,
}

impl Traits {
    /// The traits of an op without any of these properties.
    pub const NONE: Traits = Traits {
        stateful: false,
        commutative: false,
        aggregate: false,
        allows_uninitialized_input: false,
        passes_reference: false,
        metadata: false,
    };
    /// The traits of an op with state or side effects.
    pub const STATEFUL: Traits = Traits { stateful: true, ..Traits::NONE };
    /// The traits of a commutative op.
    pub const COMMUTATIVE: Traits = Traits { commutative: true, ..Traits::NONE };
    /// The traits of an op that sums its inputs, in any order.
    pub const AGGREGATE: Traits = Traits { commutative: true, aggregate: true, ..Traits::NONE };
    /// The traits of an op that reads only metadata of its first input.
    pub const METADATA: Traits = Traits { metadata: true, ..Traits::NONE };
}

/// The inference function of ops whose output shapes are unknown before the step runs.
pub fn unknown_shapes(_: &mut Infer<'_>) -> Result<()> {
    Ok(())
}

/// An op with its parsed signature.
pub struct Op {
    pub def: &'static OpDef,
    pub inputs: Vec<Arg>,
    pub outputs: Vec<Arg>,
    pub attrs: Vec<AttrSpec>,
    /// The op's index in the op table, which also indexes tables with one entry per op.
    pub index: usize,
    /// True if nodes of the op may wait for something other than their inputs: a member of a group, an element of a queue
    /// or dataset, a lock. All ops of a family with such ops have it.
    pub may_wait: bool,
}

impl Op {
    /// Parses the signature of an op table row; the error says which part of the row is malformed.
    fn parse(def: &'static OpDef, index: usize, may_wait: bool) -> Result<Op, String> {
        let attrs = def.attrs.iter().map(|a| spec::parse_attr(a)).collect::<Result<Vec<_>, _>>()?;
        let resolve = |text: &&'static str| -> Result<Arg, String> {
            let mut arg = spec::parse_arg(text)?;
            if let ArgType::Attr(name) = arg.ty {
                let attr = attrs.iter().find(|a| a.name == name);
                let attr = attr.ok_or_else(|| format!("'{text}': no attr and no type '{name}'"))?;
                if attr.is_list {
                    arg.ty = ArgType::List(attr.name);
                }
            }
            Ok(arg)
        };
        Ok(Op {
            def,
            inputs: def.inputs.iter().map(resolve).collect::<Result<_, _>>()?,
            outputs: def.outputs.iter().map(resolve).collect::<Result<_, _>>()?,
            attrs,
            index,
            may_wait,
        })
    }

    /// Returns the op's name.
    pub fn name(&self) -> &'static str {
        self.def.name
    }

    /// Returns the executor's treatment of the op.
    pub fn role(&self) -> Role {
        self.def.role
    }

    /// Returns whether the op has state or side effects.
    pub fn is_stateful(&self) -> bool {
        self.def.traits.stateful
    }

    /// Returns the declaration of an attribute.
    pub fn attr_spec(&self, name: &str) -> Option<&AttrSpec> {
        self.attrs.iter().find(|a| a.name == name)
    }

    /// Returns the value of an attribute, or its default.
    ///
    /// # Errors
    /// `InvalidArgument` if the attribute has neither a value nor a default, or is of another kind.
    pub fn attr<T: FromAttr>(&self, attrs: &Attrs, name: &str) -> Result<T> {
        let value = attrs.get(name).or_else(|| self.attr_spec(name)?.default.as_ref());
        match value {
            Some(value) => crate::attr::read(name, value),
            None => {
                Err(Error::invalid(format!("NodeDef missing attr '{name}' from Op<name={}>", self.name())))
            }
        }
    }

    /// Returns the types of the inputs under these attributes.
    pub fn input_types(&self, attrs: &Attrs) -> Result<PortTypes> {
        self.port_types(&self.inputs, attrs)
    }

    /// Returns the types of the outputs under these attributes.
    pub fn output_types(&self, attrs: &Attrs) -> Result<PortTypes> {
        self.port_types(&self.outputs, attrs)
    }

    fn port_types(&self, args: &[Arg], attrs: &Attrs) -> Result<PortTypes> {
        let mut types = PortTypes::new();
        for arg in args {
            let count = self.arg_count(arg, attrs)?;
            match arg.ty {
                ArgType::Fixed(dtype) => {
                    types.extend((0..count).map(|_| PortType { dtype, is_ref: arg.is_ref }))
                }
                ArgType::Attr(name) => {
                    let dtype = self.attr::<DType>(attrs, name)?;
                    types.extend((0..count).map(|_| PortType { dtype, is_ref: arg.is_ref }));
                }
                ArgType::List(name) => {
                    let list = self.attr::<Vec<DType>>(attrs, name)?;
                    types.extend(list.into_iter().map(|dtype| PortType { dtype, is_ref: arg.is_ref }));
                }
            }
        }
        Ok(types)
    }

    /// Returns the number of tensors of an input or output argument under these attributes.
    pub fn arg_count(&self, arg: &Arg, attrs: &Attrs) -> Result<usize> {
        if let ArgType::List(name) = arg.ty {
            return Ok(self.attr::<Vec<DType>>(attrs, name)?.len());
        }
        let Some(name) = arg.number_attr else { return Ok(1) };
        let count = self.attr::<i64>(attrs, name)?;
        match usize::try_from(count) {
            Ok(count) if count <= MAX_PORTS => Ok(count),
            _ => Err(Error::invalid(format!("attr '{name}' is {count}, not in 0..={MAX_PORTS}"))),
        }
    }

    /// Checks that every attribute has a value or a default, and that values are of the right kind and allowed.
    pub fn check_attrs(&self, attrs: &Attrs) -> Result<()> {
        for spec in &self.attrs {
            let Some(value) = attrs.get(spec.name) else {
                if spec.default.is_none() {
                    return Err(Error::invalid(format!(
                        "NodeDef missing attr '{}' from Op<name={}>",
                        spec.name,
                        self.name()
                    )));
                }
                continue;
            };
            spec.check(value).map_err(|e| match e {
                Error::Invalid { code, message } => {
                    Error::Invalid { code, message: format!("{message}; Op<name={}>", self.name()) }
                }
                other => other,
            })?;
        }
        Ok(())
    }
}

/// The largest number of inputs or of outputs of a node.
pub(crate) const MAX_PORTS: usize = 1 << 20;

/// The types of a node's inputs or outputs.
pub type PortTypes = SmallVec<[PortType; 4]>;

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Op({})", self.name())
    }
}

impl fmt::Debug for OpDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpDef({})", self.name)
    }
}

impl fmt::Debug for Gradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Gradient::Defined(_) => "Defined",
            Gradient::Leaf => "Leaf",
            Gradient::None => "None",
        })
    }
}

/// All ops, and their indices by name.
struct Registry {
    ops: Vec<Op>,
    by_name: FxHashMap<&'static str, usize>,
}

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let defs = FAMILIES.iter().flat_map(|(name, family)| family.iter().map(move |def| (*name, def)));
        let ops: Vec<Op> = defs
            .enumerate()
            .map(|(index, (family, def))| {
                let op = Op::parse(def, index, WAITING.contains(&family));
                op.unwrap_or_else(|e| panic!("op table, {}: {e}", def.name))
            })
            .collect();
        let by_name = ops.iter().map(|op| (op.name(), op.index)).collect();
        Registry { ops, by_name }
    })
}

/// Returns the op with this name.
pub fn lookup(name: &str) -> Option<&'static Op> {
    let registry = registry();
    registry.by_name.get(name).map(|&i| &registry.ops[i])
}

/// Returns the op families, each as the name of its source file and its op table rows.
pub fn families() -> &'static [(&'static str, &'static [OpDef])] {
    FAMILIES
}

/// Returns all ops in the order of their indices.
pub fn all() -> &'static [Op] {
    &registry().ops
}

/// A host evaluator of nodes with constant inputs, which constant folding uses; the crate with the kernels implements
/// it.
pub trait Evaluate {
    /// Computes the node's outputs; `None` if there is no kernel for the node.
    fn evaluate(&self, node: &Node, inputs: &[Tensor]) -> Option<Result<Vec<Tensor>>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_row_parses() {
        let mut names: Vec<_> = all().iter().map(|op| op.name()).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

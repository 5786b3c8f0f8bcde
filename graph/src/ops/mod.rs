//! The op table: what ops there are, their signatures, shape inference and gradients. One file a family; an op
//! is a row in its family's slice, and nothing else.

mod accumulator;
mod activation;
mod barrier;
mod bessel;
pub mod bias;
mod binary;
mod boxes;
mod broadcast;
mod candidate;
mod cast;
mod check;
mod checkpoint;
mod codec;
mod color;
mod compare;
pub(crate) mod complex;
mod concat;
pub mod constant;
mod control_flow;
pub mod conv;
mod ctc;
mod dataset_batch;
mod dataset_function;
mod dataset_memory;
mod dataset_options;
mod dataset_query;
mod dataset_source;
mod dataset_transform;
mod diagonal;
mod edit_distance;
pub mod einsum;
mod fft;
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
mod quantize;
mod queue;
pub mod ragged;
mod random;
mod reader;
mod reduce;
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
mod stack;
mod staging;
mod stateless_random;
mod string;
mod summary;
mod summary_writer;
mod table;
mod tensor_array;
mod tensor_list;
mod topk;
mod training;
mod transfer;
pub mod transpose;
mod unary;
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

/// The families by name, which is that of their file.
macro_rules! families {
    ($($family:ident),* $(,)?) => {
        &[$((stringify!($family), $family::OPS)),*]
    };
}

const FAMILIES: &[(&str, &[OpDef])] = families! {
    accumulator,
    activation,
    barrier,
    bessel,
    bias,
    binary,
    boxes,
    candidate,
    cast,
    check,
    checkpoint,
    codec,
    color,
    compare,
    complex,
    concat,
    constant,
    control_flow,
    conv,
    diagonal,
    edit_distance,
    einsum,
    fft,
    ctc,
    dataset_batch,
    dataset_function,
    dataset_memory,
    dataset_options,
    dataset_query,
    dataset_source,
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
    quantize,
    queue,
    ragged,
    random,
    reader,
    reduce,
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
    stack,
    staging,
    stateless_random,
    string,
    summary,
    summary_writer,
    table,
    tensor_array,
    tensor_list,
    topk,
    training,
    transfer,
    transpose,
    unary,
    unique,
    variable,
};

/// One op, as a row of the table. Signatures are in the language of [`spec`].
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
    /// TensorFlow has no such op: it is for graphs that are built here and run on our servers.
    pub is_own: bool,
}

impl OpDef {
    /// What a row leaves out: `OpDef { name: "NoOp", ..OpDef::NEW }`.
    pub const NEW: OpDef = OpDef {
        name: "",
        inputs: &[],
        outputs: &[],
        attrs: &[],
        infer: unknown_shapes,
        gradient: Gradient::None,
        role: Role::Compute,
        traits: Traits::NONE,
        is_own: false,
    };
}

/// Sets the shapes of a node's outputs from what is known of its inputs.
pub type InferFn = fn(&mut Infer<'_>) -> Result<()>;

/// Adds the nodes of a gradient: takes the gradients that arrived at the outputs (`None` where none did) and
/// returns one for each input, `None` where no gradient flows.
pub type GradientFn = fn(&Scope, &Forward, &[Option<Output>]) -> Result<Vec<Option<Output>>>;

/// How gradients pass through an op.
#[derive(Clone, Copy)]
pub enum Gradient {
    Defined(GradientFn),
    /// Nothing flows through, by nature: constants, variables, comparisons, shapes.
    Leaf,
    /// Not there; asking is an error that names the op.
    None,
}

/// How the executor treats an op. Ops outside `Compute` are a closed set.
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

/// Facts that passes and the placer ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traits {
    /// Has state or an effect: never folded, merged or duplicated.
    pub stateful: bool,
    /// The order of its inputs does not matter.
    pub commutative: bool,
    /// Sums its inputs.
    pub aggregate: bool,
    /// Takes a reference whose variable may have no value yet.
    pub allows_uninitialized_input: bool,
    /// Given a reference, passes it on: whoever reads the output sees the value of that time, with what was
    /// written since.
    pub passes_reference: bool,
    /// Looks at no elements of its first input: asks for its shape, or for what a variant says of itself. Runs where that
    /// input is.
    pub metadata: bool,
}

impl Traits {
    pub const NONE: Traits = Traits {
        stateful: false,
        commutative: false,
        aggregate: false,
        allows_uninitialized_input: false,
        passes_reference: false,
        metadata: false,
    };
    pub const STATEFUL: Traits = Traits { stateful: true, ..Traits::NONE };
    pub const COMMUTATIVE: Traits = Traits { commutative: true, ..Traits::NONE };
    pub const AGGREGATE: Traits = Traits { commutative: true, aggregate: true, ..Traits::NONE };
    pub const METADATA: Traits = Traits { metadata: true, ..Traits::NONE };
}

/// Nothing is known of any output.
pub fn unknown_shapes(_: &mut Infer<'_>) -> Result<()> {
    Ok(())
}

/// An op with its signature parsed.
pub struct Op {
    pub def: &'static OpDef,
    pub inputs: Vec<Arg>,
    pub outputs: Vec<Arg>,
    pub attrs: Vec<AttrSpec>,
    /// Position in the registry, for dense tables beside it.
    pub index: usize,
}

impl Op {
    fn parse(def: &'static OpDef, index: usize) -> Result<Op, String> {
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
        })
    }

    pub fn name(&self) -> &'static str {
        self.def.name
    }

    pub fn role(&self) -> Role {
        self.def.role
    }

    pub fn is_stateful(&self) -> bool {
        self.def.traits.stateful
    }

    pub fn attr_spec(&self, name: &str) -> Option<&AttrSpec> {
        self.attrs.iter().find(|a| a.name == name)
    }

    /// The attribute's value: as set, or the default.
    ///
    /// # Errors
    /// `InvalidArgument` if it is neither set nor has a default, or is of another kind.
    pub fn attr<T: FromAttr>(&self, attrs: &Attrs, name: &str) -> Result<T> {
        let value = attrs.get(name).or_else(|| self.attr_spec(name)?.default.as_ref());
        match value {
            Some(value) => crate::attr::read(name, value),
            None => {
                Err(Error::invalid(format!("NodeDef missing attr '{name}' from Op<name={}>", self.name())))
            }
        }
    }

    /// The types of the inputs under these attributes.
    pub fn input_types(&self, attrs: &Attrs) -> Result<PortTypes> {
        self.port_types(&self.inputs, attrs)
    }

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

    /// How many ports the argument has.
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

    /// Checks that every attribute is there (or has a default), of its kind and allowed.
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

/// A node with more ports than this is refused.
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

struct Registry {
    ops: Vec<Op>,
    by_name: FxHashMap<&'static str, usize>,
}

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let defs = FAMILIES.iter().flat_map(|(_, family)| family.iter());
        let ops: Vec<Op> = defs
            .enumerate()
            .map(|(index, def)| {
                Op::parse(def, index).unwrap_or_else(|e| panic!("op table, {}: {e}", def.name))
            })
            .collect();
        let by_name = ops.iter().map(|op| (op.name(), op.index)).collect();
        Registry { ops, by_name }
    })
}

/// The op of this name.
pub fn lookup(name: &str) -> Option<&'static Op> {
    let registry = registry();
    registry.by_name.get(name).map(|&i| &registry.ops[i])
}

/// The families of ops, by the name of the file that holds each.
pub fn families() -> &'static [(&'static str, &'static [OpDef])] {
    FAMILIES
}

/// Every op there is.
pub fn all() -> &'static [Op] {
    &registry().ops
}

/// Computes the outputs of a node on the host from constant inputs: what constant folding and shape inference
/// ask of whoever has kernels.
pub trait Evaluate {
    /// `None` if there is no kernel for the node.
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

//! The input of a worker that continues without batches once its input has ended.

use graph::{DType, Error, NodeId, Output, PartialShape, Result, Scope};

/// The components of a step's batch, which are zeros once the input has ended.
#[derive(Clone, Debug)]
pub(crate) struct OptionalBatch {
    /// False once the input has ended: a scalar `bool`.
    pub(crate) has_batch: Output,
    pub(crate) components: Vec<Output>,
}

/// The iterator from which a step takes its batch.
struct Source {
    iterator: Output,
    types: Vec<DType>,
    shapes: Vec<PartialShape>,
}

impl OptionalBatch {
    /// Adds the nodes that take the next batch in place of the node of `inputs`, which fails at the end of the input.
    ///
    /// # Errors
    /// `InvalidArgument` if `inputs` are not components of the next element of one iterator.
    pub(crate) fn new(scope: &Scope, inputs: &[Output]) -> Result<OptionalBatch> {
        let Source { iterator, types, shapes } = Source::of(&scope.finish()?, inputs)?;
        let host = scope.host_of(iterator.node);
        let with_form = |call: graph::builder::Call<'_>| {
            call.attr("output_types", types.clone()).attr("output_shapes", shapes.clone()).outputs()
        };
        let optional = with_form(host.op("IteratorGetNextAsOptional").input(iterator));
        let optional = optional.first().copied().unwrap_or(iterator);
        let has_batch = host.op("OptionalHasValue").input(optional).output();
        let next = host.cond(
            has_batch,
            |branch| with_form(branch.op("OptionalGetValue").input(optional)),
            |branch| types.iter().zip(&shapes).map(|(dtype, shape)| zeros(branch, *dtype, shape)).collect(),
        );
        let component = |input: &Output| next.get(input.index as usize).copied();
        let components = inputs.iter().filter_map(component).collect();
        scope.finish().map(|_| OptionalBatch { has_batch, components })
    }
}

impl Source {
    /// Finds the iterator of which `inputs` are the next element.
    fn of(graph: &graph::Graph, inputs: &[Output]) -> Result<Source> {
        let refused = |reason: String| {
            Err(Error::invalid(format!(
                "Uneven::Join needs a batch that one Input gives without further nodes: {reason}"
            )))
        };
        let Some(first) = inputs.first() else { return refused("the step has no inputs".to_owned()) };
        for input in inputs {
            let node = graph.node(input.node);
            if node.op.name() != "IteratorGetNext" {
                return refused(format!("'{}' is a {}", node.name, node.op.name()));
            }
            if input.node != first.node {
                let of = |id: NodeId| graph.node(id).name.clone();
                return refused(format!("'{}' and '{}' are two", of(first.node), of(input.node)));
            }
        }
        let node = graph.node(first.node);
        let Some(iterator) = graph.input(first.node, 0) else {
            return refused(format!("'{}' has no iterator", node.name));
        };
        Ok(Source { iterator, types: node.attr("output_types")?, shapes: node.attr("output_shapes")? })
    }
}

/// Returns zeros of a shape, in which unknown sizes are 1.
fn zeros(scope: &Scope, dtype: DType, shape: &PartialShape) -> Output {
    let dims: Vec<usize> = shape.dims().unwrap_or_default().iter().map(|dim| dim.unwrap_or(1)).collect();
    scope.zeros(dtype, &dims)
}

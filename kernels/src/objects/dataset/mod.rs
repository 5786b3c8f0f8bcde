//! Datasets: sequences of elements that a client describes and iterators pull, and the iterators themselves. An
//! element is a list of tensors. Kernels (`dataset_*`, `iterator`) make datasets from nodes; what datasets do is
//! here.

mod ahead;
pub(crate) mod argument;
pub(crate) mod batch;
pub(crate) mod cache;
mod context;
pub(crate) mod csv;
pub(crate) mod element;
pub(crate) mod files;
pub(crate) mod function;
pub(crate) mod generator;
pub(crate) mod grouped;
pub(crate) mod interleave;
pub(crate) mod iterator;
pub(crate) mod map;
pub(crate) mod message;
pub(crate) mod padded_batch;
pub(crate) mod parallel_map;
pub(crate) mod placed;
pub(crate) mod prefetch;
pub(crate) mod rebatch;
pub(crate) mod shards;
pub(crate) mod shuffle;
pub(crate) mod source;
pub(crate) mod threads;
pub(crate) mod transform;
pub(crate) mod window;

pub(crate) use context::{MakeContext, PerPipeline, Pipeline, Place, Pull};

use device::Result;
use graph::{DType, PartialShape, Tensor, VariantObject};
use std::fmt;
use std::sync::Arc;

/// One element: a tensor a component, or [one variant](placed) where these are not all on the host.
pub(crate) type Element = Vec<Tensor>;

/// The number of elements, where it is known: [`INFINITE`] and [`UNKNOWN`] are TensorFlow's numbers for these.
pub(crate) type Cardinality = i64;

pub(crate) const INFINITE: Cardinality = -1;
pub(crate) const UNKNOWN: Cardinality = -2;

/// Datasets may be nested this deep: iterators call each other, a frame or two of stack a level.
const MAX_DEPTH: usize = 2000;

/// A dataset may have this many inputs, inputs of inputs, and so on, each counted as often as it is iterated.
const MAX_SIZE: usize = 1 << 20;

/// What is known of every element of a dataset, component by component.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ElementSpec {
    pub(crate) dtypes: Vec<DType>,
    pub(crate) shapes: Vec<PartialShape>,
}

impl ElementSpec {
    pub(crate) fn new(dtypes: Vec<DType>, shapes: Vec<PartialShape>) -> Result<ElementSpec> {
        if dtypes.len() != shapes.len() {
            device::invalid!(
                "`output_shapes` must be the same length as `output_types` ({} vs. {})",
                shapes.len(),
                dtypes.len()
            );
        }
        Ok(ElementSpec { dtypes, shapes })
    }

    /// Scalars of these types.
    pub(crate) fn scalars(dtypes: &[DType]) -> ElementSpec {
        ElementSpec { dtypes: dtypes.to_vec(), shapes: vec![PartialShape::scalar(); dtypes.len()] }
    }

    /// What this element is.
    pub(crate) fn of(element: &[Tensor]) -> ElementSpec {
        ElementSpec {
            dtypes: element.iter().map(Tensor::dtype).collect(),
            shapes: element.iter().map(|t| t.shape().into()).collect(),
        }
    }

    /// Whether elements of `actual` can be given where `self` is expected.
    ///
    /// # Errors
    /// `InvalidArgument` naming the first component that differs.
    pub(crate) fn check(&self, actual: &ElementSpec) -> Result<()> {
        if self.dtypes.len() != actual.dtypes.len() {
            device::invalid!(
                "Number of components does not match: expected {} types but got {}.",
                self.dtypes.len(),
                actual.dtypes.len()
            );
        }
        for (i, (expected, got)) in self.dtypes.iter().zip(&actual.dtypes).enumerate() {
            if expected != got {
                device::invalid!("Data type mismatch at component {i}: expected {expected} but got {got}.");
            }
        }
        for (i, (expected, got)) in self.shapes.iter().zip(&actual.shapes).enumerate() {
            if !expected.is_compatible(got) {
                device::invalid!("Incompatible shapes at component {i}: expected {expected} but got {got}.");
            }
        }
        Ok(())
    }
}

/// The narrowest shape that takes what either takes.
pub(crate) fn relaxed(a: &PartialShape, b: &PartialShape) -> PartialShape {
    match (a.dims(), b.dims()) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            PartialShape::of_dims(a.iter().zip(b).map(|(a, b)| if a == b { *a } else { None }))
        }
        _ => PartialShape::unknown(),
    }
}

/// What a kind of dataset does.
pub(crate) trait DatasetKind: Send + Sync + fmt::Debug {
    /// The kind's name in messages: "Map".
    fn name(&self) -> &'static str;

    /// A new iterator, before the first element. Nothing is read before it is asked for.
    fn iterate(&self, ctx: &MakeContext) -> Result<Box<dyn DatasetIterator>>;
}

/// The elements of a dataset, one after the other.
pub(crate) trait DatasetIterator: Send {
    /// The next element, `None` after the last. Waits for it, until `pull` is cancelled. After an error the next
    /// call goes on with what follows, where there is something.
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>>;
}

/// A dataset: immutable, shared by variants, other datasets and iterators.
pub(crate) struct Dataset {
    pub(crate) spec: ElementSpec,
    pub(crate) cardinality: Cardinality,
    /// Whether what runs in parallel keeps the order, as far as the client has said.
    pub(crate) deterministic: Option<bool>,
    depth: usize,
    size: usize,
    kind: Box<dyn DatasetKind>,
}

impl Dataset {
    /// # Errors
    /// `InvalidArgument` if the dataset is too deep or too large to be iterated.
    pub(crate) fn new(
        spec: ElementSpec,
        cardinality: Cardinality,
        inputs: &[&Arc<Dataset>],
        kind: impl DatasetKind + 'static,
    ) -> Result<Arc<Dataset>> {
        let deterministic = inputs.iter().rev().find_map(|input| input.deterministic);
        Dataset::with_options(spec, cardinality, deterministic, inputs, kind)
    }

    pub(crate) fn with_options(
        spec: ElementSpec,
        cardinality: Cardinality,
        deterministic: Option<bool>,
        inputs: &[&Arc<Dataset>],
        kind: impl DatasetKind + 'static,
    ) -> Result<Arc<Dataset>> {
        let depth = inputs.iter().map(|input| input.depth).max().unwrap_or(0) + 1;
        let size = inputs.iter().fold(1usize, |sum, input| sum.saturating_add(input.size));
        if depth > MAX_DEPTH {
            device::invalid!("{} is more than {MAX_DEPTH} datasets deep", kind.name());
        }
        if size > MAX_SIZE {
            device::invalid!("an iterator over {} would need more than {MAX_SIZE} iterators", kind.name());
        }
        Ok(Arc::new(Dataset { spec, cardinality, deterministic, depth, size, kind: Box::new(kind) }))
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// An iterator within that of `ctx`.
    ///
    /// # Errors
    /// `InvalidArgument` if datasets that elements gave are nested too deep.
    pub(crate) fn iterator(&self, ctx: &MakeContext) -> Result<Box<dyn DatasetIterator>> {
        if ctx.depth() + self.depth > 2 * MAX_DEPTH {
            device::invalid!("datasets of elements of datasets are nested more than {MAX_DEPTH} deep");
        }
        self.kind.iterate(&ctx.within(self.name()))
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}Dataset", self.name())
    }
}

/// A dataset as an element of a `variant` tensor.
#[derive(Clone, Debug)]
pub(crate) struct DatasetVariant {
    dataset: Arc<Dataset>,
    /// How deep datasets and variants nest in it: its inputs and what it holds.
    depth: usize,
}

impl VariantObject for DatasetVariant {
    fn type_name(&self) -> &'static str {
        "tensorflow::DatasetVariantWrapper"
    }

    fn nesting(&self) -> usize {
        self.depth
    }
}

impl DatasetVariant {
    /// A dataset that has these tensors for inputs, captures or elements, as a scalar tensor.
    ///
    /// # Errors
    /// `InvalidArgument` if datasets are nested too deep: each level is one of the stack when all are dropped.
    pub(crate) fn tensor<'a>(
        dataset: Arc<Dataset>,
        held: impl IntoIterator<Item = &'a Tensor>,
    ) -> Result<Tensor> {
        let variants = held.into_iter().filter_map(|tensor| tensor.as_variants().ok()).flatten();
        let deepest = variants.filter_map(|v| v.object()).map(|o| o.nesting()).max().unwrap_or(0);
        let depth = dataset.depth.max(deepest + 1);
        if depth > MAX_DEPTH {
            device::invalid!("{} is more than {MAX_DEPTH} datasets deep", dataset.name());
        }
        Ok(Tensor::variant(DatasetVariant { dataset, depth }))
    }

    /// The dataset in a scalar tensor.
    pub(crate) fn of(tensor: &Tensor) -> Result<Arc<Dataset>> {
        match tensor.as_variants()? {
            [variant] if tensor.shape().rank() == 0 => {
                Ok(variant.expect::<DatasetVariant>("a dataset")?.dataset.clone())
            }
            _ => device::invalid!("Dataset tensor must be a scalar of dtype DT_VARIANT."),
        }
    }
}

#[cfg(test)]
mod tests;

//! Datasets, which describe sequences of elements, and the iterators that produce the elements; an element is a list
//! of tensors. The kernels `dataset_*` and `iterator` create datasets from nodes.

pub(crate) mod argument;
pub(crate) mod batch;
pub(crate) mod cache;
mod context;
pub(crate) mod csv;
pub(crate) mod element;
pub(crate) mod file_cache;
pub(crate) mod files;
mod fingerprint;
pub(crate) mod function;
pub(crate) mod generator;
pub(crate) mod global_shuffle;
pub(crate) mod grouped;
pub(crate) mod index_map;
pub(crate) mod interleave;
pub(crate) mod iterator;
pub(crate) mod map;
pub(crate) mod matching_files;
pub(crate) mod message;
mod model;
pub(crate) mod multi_device;
pub(crate) mod on_device;
pub(crate) mod padded_batch;
pub(crate) mod parallel_map;
pub(crate) mod prefetch;
mod prefetch_iterator;
pub(crate) mod rebatch;
pub(crate) mod sampling;
pub(crate) mod shuffle;
pub(crate) mod source;
pub(crate) mod sparse_batch;
pub(crate) mod speed;
pub(crate) mod sql;
pub(crate) mod state;
pub(crate) mod stats;
pub(crate) mod storage;
pub(crate) mod threads;
pub(crate) mod transform;
pub(crate) mod window;

pub(crate) use context::{DatasetPath, IteratorContext, PerPipeline, Pull};

use self::fingerprint::{MakerNode, Origin};
use self::model::PipelineNode;
use self::state::ExchangedState;
use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, DType, PartialShape, Tensor, VariantObject};
use std::fmt;
use std::sync::Arc;

/// An element: one tensor per component, or [one variant](on_device) if any component is in device memory.
pub(crate) type Element = Vec<Tensor>;

/// The number of elements of a dataset, or one of the constants [`INFINITE`] and [`UNKNOWN`], whose values are
/// TensorFlow's.
pub(crate) type Cardinality = i64;

/// The cardinality of a dataset that does not end.
pub(crate) const INFINITE: Cardinality = -1;
/// The cardinality of a dataset whose length is not known in advance.
pub(crate) const UNKNOWN: Cardinality = -2;

/// The type name in a handle that refers to no object; each pipeline that gets the handle makes its own object.
pub(crate) const DUMMY: &str = "DummyResource";

/// Maximum nesting depth of datasets. Each level takes one or two stack frames, because iterators call each other.
const MAX_DEPTH: usize = 2000;

/// Maximum number of datasets in the tree below a dataset; a dataset that occurs several times counts each time,
/// because each occurrence gets an iterator.
const MAX_SIZE: usize = 1 << 20;

/// The dtypes and the partial shapes of all elements of a dataset, by component.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ElementSpec {
    pub(crate) dtypes: Vec<DType>,
    pub(crate) shapes: Vec<PartialShape>,
}

impl ElementSpec {
    /// Returns the spec of elements with these dtypes and shapes of components.
    ///
    /// # Errors
    /// `InvalidArgument` if the numbers of dtypes and shapes differ.
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

    /// Returns the spec of elements whose components are scalars of these dtypes.
    pub(crate) fn scalars(dtypes: &[DType]) -> ElementSpec {
        ElementSpec { dtypes: dtypes.to_vec(), shapes: vec![PartialShape::scalar(); dtypes.len()] }
    }

    /// Returns the spec that only elements with the dtypes and shapes of `element` satisfy.
    pub(crate) fn of(element: &[Tensor]) -> ElementSpec {
        ElementSpec {
            dtypes: element.iter().map(Tensor::dtype).collect(),
            shapes: element.iter().map(|t| t.shape().into()).collect(),
        }
    }

    /// Checks that elements of `actual` may be used where `self` is expected.
    ///
    /// # Errors
    /// `InvalidArgument` that names the first component that differs.
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

/// Returns the narrowest shape that is compatible with every shape that `a` or `b` is compatible with.
pub(crate) fn relaxed(a: &PartialShape, b: &PartialShape) -> PartialShape {
    match (a.dims(), b.dims()) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            PartialShape::of_dims(a.iter().zip(b).map(|(a, b)| if a == b { *a } else { None }))
        }
        _ => PartialShape::unknown(),
    }
}

/// The behaviour of one kind of dataset, for example of map datasets.
pub(crate) trait DatasetKind: Send + Sync + fmt::Debug {
    /// Returns the kind's name for messages, for example "Map".
    fn name(&self) -> &'static str;

    /// Returns a new iterator, positioned before the first element. The iterator pulls no element of an input before an
    /// element is requested from it.
    fn iterate(&self, ctx: &IteratorContext) -> Result<Box<dyn DatasetIterator>>;
}

/// An iterator over the elements of a dataset.
pub(crate) trait DatasetIterator: ExchangedState + Send {
    /// Waits for the next element, until `pull` is cancelled; returns `None` after the last element. After an error,
    /// the next call continues with the element that follows the failed element, if there is one.
    fn next(&mut self, pull: &Pull) -> Result<Option<Element>>;
}

/// A function that returns the element of a dataset with an index that is less than the cardinality.
type ElementAt = Box<dyn Fn(u64, &RandomAccess) -> Result<Element> + Send + Sync>;

/// The context of a request for one element by its index.
#[derive(Debug)]
pub(crate) struct RandomAccess {
    pub(crate) ctx: IteratorContext,
    pub(crate) pull: Pull,
    /// The orders of the globally shuffled datasets below the iterator that reads by index; `None` if no iterator does.
    pub(crate) orders: Option<global_shuffle::Orders>,
}

/// An immutable dataset, shared by variants, other datasets and iterators.
pub(crate) struct Dataset {
    pub(crate) spec: ElementSpec,
    pub(crate) cardinality: Cardinality,
    /// The option that parallel transformations keep the order of elements; `None` if the client has not set it.
    pub(crate) deterministic: Option<bool>,
    /// The options of the dataset and of its inputs, as a serialized `Options` message.
    pub(crate) options: Bytes,
    /// The batch size of the dataset's batches; `None` if it is not known that the elements are batches of one size.
    pub(crate) batch_size: Option<i64>,
    /// Returns an element by its index; `None` if the dataset has no random access.
    element_at: Option<ElementAt>,
    /// The reason that the elements cannot be read in any order; `None` if they can.
    order_error: Option<Arc<str>>,
    /// The `order_error` of an input.
    input_order_error: Option<Arc<str>>,
    /// The tree of the dataset and its inputs, for the model of a pipeline.
    tree: Arc<PipelineNode>,
    /// The node that made the dataset; `None` for a part of another dataset.
    origin: Option<Origin>,
    depth: usize,
    size: usize,
    kind: Box<dyn DatasetKind>,
}

impl Dataset {
    /// Returns a dataset with the options of its inputs; if several inputs set an option, the last one counts.
    ///
    /// # Errors
    /// `InvalidArgument` if the dataset is nested too deep or has too many inputs.
    pub(crate) fn new(
        spec: ElementSpec,
        cardinality: Cardinality,
        inputs: &[&Arc<Dataset>],
        kind: impl DatasetKind + 'static,
    ) -> Result<Arc<Dataset>> {
        Dataset::boxed(spec, cardinality, inputs, Box::new(kind))
    }

    fn boxed(
        spec: ElementSpec,
        cardinality: Cardinality,
        inputs: &[&Arc<Dataset>],
        kind: Box<dyn DatasetKind>,
    ) -> Result<Arc<Dataset>> {
        let options = inputs.iter().map(|input| &input.options);
        Dataset::with_options(spec, cardinality, message::merged_options(options)?, inputs, kind)
    }

    /// Returns a dataset like [`Dataset::new`], but with the given options, a serialized `Options` message.
    pub(crate) fn with_options(
        spec: ElementSpec,
        cardinality: Cardinality,
        options: Bytes,
        inputs: &[&Arc<Dataset>],
        kind: Box<dyn DatasetKind>,
    ) -> Result<Arc<Dataset>> {
        let depth = inputs.iter().map(|input| input.depth).max().unwrap_or(0) + 1;
        let size = inputs.iter().fold(1usize, |sum, input| sum.saturating_add(input.size));
        if depth > MAX_DEPTH {
            device::invalid!("{} is more than {MAX_DEPTH} datasets deep", kind.name());
        }
        if size > MAX_SIZE {
            device::invalid!("an iterator over {} would need more than {MAX_SIZE} iterators", kind.name());
        }
        let deterministic = message::deterministic(&options).flatten();
        let order_error =
            format!("FAILED_PRECONDITION: {}Dataset does not support random access.", kind.name());
        let trees = inputs.iter().map(|input| input.tree.clone()).collect();
        Ok(Arc::new(Dataset {
            tree: Arc::new(PipelineNode { name: kind.name(), inputs: trees }),
            spec,
            cardinality,
            deterministic,
            options,
            batch_size: None,
            element_at: None,
            order_error: Some(order_error.into()),
            input_order_error: inputs.iter().find_map(|input| input.order_error.clone()),
            origin: None,
            depth,
            size,
            kind,
        }))
    }

    /// Returns the dataset with another [`batch_size`](Dataset::batch_size); nothing else may refer to the dataset yet.
    pub(crate) fn with_batch_size(mut self: Arc<Dataset>, size: Option<i64>) -> Arc<Dataset> {
        if let Some(dataset) = Arc::get_mut(&mut self) {
            dataset.batch_size = size;
        }
        self
    }

    /// Returns the dataset with random access: `element_at` gets an index that is less than the cardinality. Nothing else
    /// may refer to the dataset yet.
    pub(crate) fn with_random_access(
        mut self: Arc<Dataset>,
        element_at: impl Fn(u64, &RandomAccess) -> Result<Element> + Send + Sync + 'static,
    ) -> Arc<Dataset> {
        if let Some(dataset) = Arc::get_mut(&mut self) {
            dataset.element_at = Some(Box::new(element_at));
            dataset.order_error = dataset.input_order_error.clone();
        }
        self
    }

    /// Returns the dataset, whose elements cannot be read in any order for the reason `error`. Nothing else may refer to
    /// the dataset yet.
    pub(crate) fn with_order_error(mut self: Arc<Dataset>, error: String) -> Arc<Dataset> {
        if let Some(dataset) = Arc::get_mut(&mut self) {
            dataset.order_error = Some(error.into());
        }
        self
    }

    /// Returns the dataset with the node that made it, and the node's inputs. A dataset that something else refers to,
    /// because the node passed an input on, is returned unchanged.
    pub(crate) fn with_maker(
        mut self: Arc<Dataset>,
        maker: &Arc<MakerNode>,
        inputs: Vec<Tensor>,
    ) -> Arc<Dataset> {
        if let Some(dataset) = Arc::get_mut(&mut self) {
            dataset.origin = Some(Origin::new(maker.clone(), inputs));
        }
        self
    }

    /// Returns the hash of the ops, attributes, functions and tensors of which the dataset is made.
    ///
    /// # Errors
    /// `Unimplemented` if an element of another dataset, such as a window, is part of the dataset, or an object whose
    /// content has no hash.
    pub(crate) fn fingerprint(&self) -> Result<u64> {
        match &self.origin {
            Some(origin) => origin.fingerprint(),
            None => {
                let message = format!("the fingerprint of {self:?}, which is an element of another dataset");
                Err(Error::unimplemented(message))
            }
        }
    }

    /// Returns the element with index `index`.
    ///
    /// # Errors
    /// `Unimplemented` if the dataset has no random access; `FailedPrecondition` if its cardinality is infinite or not
    /// known; `OutOfRange` if the index is not less than the cardinality.
    pub(crate) fn element_at(&self, index: i64, access: &RandomAccess) -> Result<Element> {
        let Some(element_at) = &self.element_at else {
            return Err(Error::unimplemented(format!("Random access is not implemented for {self:?}")));
        };
        let kind = match self.cardinality {
            INFINITE => "infinite",
            UNKNOWN => "unknown",
            count => {
                return match u64::try_from(index) {
                    Ok(at) if index < count => element_at(at, access),
                    _ => {
                        let message = format!("Index out of range [0, {count}):{index}");
                        Err(Error::new(Code::OutOfRange, message))
                    }
                };
            }
        };
        let message = format!("{self:?} has {kind} cardinality, which does not support random access.");
        Err(Error::new(Code::FailedPrecondition, message))
    }

    /// Returns the name of the dataset's kind for messages, for example "Map".
    pub(crate) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns a new iterator over the dataset; `ctx` is the context of the iterator that will contain it.
    ///
    /// # Errors
    /// `InvalidArgument` if datasets that functions returned are nested too deep.
    pub(crate) fn iterator(&self, ctx: &IteratorContext) -> Result<Box<dyn DatasetIterator>> {
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
    /// Nesting depth of datasets and variants, including the inputs of the dataset and the tensors that it holds.
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
    /// Returns a scalar tensor that holds the dataset. `held` are the tensors that the dataset holds: inputs, captured
    /// arguments and elements.
    ///
    /// # Errors
    /// `InvalidArgument` if the nesting is too deep: dropping the dataset takes a stack frame per level.
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

    /// Returns the dataset in a scalar tensor.
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
mod state_tests;
#[cfg(test)]
mod tests;

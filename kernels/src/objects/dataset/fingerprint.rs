//! Fingerprints of datasets: hashes of the ops, attributes, functions and tensors of which a dataset is made. The names
//! of nodes and functions do not matter, nor do the seeds of shuffles, so programs that build the same pipeline get the
//! same fingerprint.

use super::cache::SharedCache;
use super::shuffle::SharedSeeds;
use super::{DUMMY, DatasetVariant};
use device::function::{Functions, no_functions};
use device::kernel::KernelInit;
use device::resource::Resource;
use device::{Error, Result};
use graph::attr::AttrList;
use graph::fingerprint::hash64;
use graph::function::ArgDefType;
use graph::{AttrValue, Attrs, DType, FuncAttr, FunctionDef, Node, PartialShape, Tensor, ops};
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The node that makes a dataset, with the functions that its attributes name.
pub(crate) struct MakerNode {
    node: Node,
    functions: Arc<dyn Functions>,
    hash: OnceLock<u64>,
}

impl MakerNode {
    /// Returns the node of a kernel.
    pub(crate) fn of(init: &KernelInit<'_>) -> Arc<MakerNode> {
        let is_func =
            |value: &AttrValue| matches!(value, AttrValue::Func(_) | AttrValue::List(AttrList::Func(_)));
        // A dataset without functions does not keep the library alive.
        let has_functions = init.node.attrs.iter().any(|(_, value)| is_func(value));
        let functions = if has_functions { init.functions } else { no_functions() };
        Arc::new(MakerNode { node: init.node.clone(), functions: functions.clone(), hash: OnceLock::new() })
    }

    /// Returns the hash of the op, its attributes, and the bodies of its functions.
    fn hash(&self) -> u64 {
        *self.hash.get_or_init(|| {
            let mut digest = Digest::new(&*self.functions);
            digest.text(self.node.op.name().as_bytes());
            digest.attrs(&self.node.attrs);
            digest.finish()
        })
    }

    /// Returns whether input `i` is a seed of a shuffle, or the generator of its seeds.
    fn is_seed(&self, i: usize) -> bool {
        let op = self.node.op;
        let version =
            |name: &str| op.name().strip_prefix(name).is_some_and(|v| v.is_empty() || v.starts_with('V'));
        let is_shuffle = version("ShuffleDataset") || version("ShuffleAndRepeatDataset");
        let name = op.inputs.get(i).map(|input| input.name);
        is_shuffle && matches!(name, Some("seed" | "seed2" | "seed_generator"))
    }
}

impl fmt::Debug for MakerNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MakerNode({})", self.node.name)
    }
}

/// Returns whether the objects behind handles of this type do not change the elements of a dataset, but for the order of
/// a shuffle.
fn is_neutral(type_name: &str) -> bool {
    [SharedSeeds::KIND, SharedCache::KIND, DUMMY].contains(&type_name)
}

/// The node that made a dataset, and the node's inputs.
#[derive(Debug)]
pub(super) struct Origin {
    maker: Arc<MakerNode>,
    inputs: Vec<Tensor>,
    fingerprint: OnceLock<Result<u64>>,
}

impl Origin {
    pub(super) fn new(maker: Arc<MakerNode>, inputs: Vec<Tensor>) -> Origin {
        Origin { maker, inputs, fingerprint: OnceLock::new() }
    }

    /// Returns the fingerprint of the dataset.
    ///
    /// # Errors
    /// `Unimplemented` if an input holds an object whose content has no hash, such as a table or a variable.
    pub(super) fn fingerprint(&self) -> Result<u64> {
        self.fingerprint.get_or_init(|| self.compute()).clone()
    }

    fn compute(&self) -> Result<u64> {
        let mut digest = Digest::new(&*self.maker.functions);
        digest.number(self.maker.hash());
        for (i, input) in self.inputs.iter().enumerate() {
            if !self.maker.is_seed(i) {
                digest.input(input)?;
            }
        }
        Ok(digest.finish())
    }
}

/// The bytes of which the hash is computed. Texts and bodies of functions are hashed first, so that the bytes are few.
struct Digest<'a> {
    functions: &'a dyn Functions,
    bytes: Vec<u8>,
    /// The functions that have been named so far; they are hashed by their places here, and their attributes at the end.
    named: Vec<FuncAttr>,
    /// The places of the functions of a name.
    places: FxHashMap<Arc<str>, Vec<usize>>,
    /// The places in `named` of the first function of each name; functions of one name have one body.
    bodies: Vec<usize>,
}

impl<'a> Digest<'a> {
    fn new(functions: &'a dyn Functions) -> Digest<'a> {
        Digest {
            functions,
            bytes: Vec::new(),
            named: Vec::new(),
            places: FxHashMap::default(),
            bodies: Vec::new(),
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.number(hash64(text));
    }

    /// Adds the attributes that define a node. Attributes of which a name begins with an underscore, and the metadata of
    /// datasets, do not change what the node computes.
    fn attrs(&mut self, attrs: &Attrs) {
        for (name, value) in attrs.iter().filter(|(name, _)| !name.starts_with('_') && ***name != *"metadata")
        {
            self.text(name.as_bytes());
            self.value(value);
        }
        self.number(u64::MAX);
    }

    fn value(&mut self, value: &AttrValue) {
        match value {
            AttrValue::Str(text) => self.text(text),
            AttrValue::Int(number) => self.number(*number as u64),
            AttrValue::Float(number) => self.number(number.to_bits().into()),
            AttrValue::Bool(flag) => self.number((*flag).into()),
            AttrValue::Type(dtype) => self.dtype(*dtype),
            AttrValue::Shape(shape) => self.shape(shape),
            AttrValue::Tensor(tensor) => self.tensor(tensor),
            AttrValue::Placeholder(name) => self.text(name.as_bytes()),
            AttrValue::Func(func) => self.func(func),
            AttrValue::List(list) => self.list(list),
        }
    }

    fn list(&mut self, list: &AttrList) {
        self.number(list.len() as u64);
        match list {
            AttrList::Empty => {}
            AttrList::Str(all) => all.iter().for_each(|text| self.text(text)),
            AttrList::Int(all) => all.iter().for_each(|number| self.number(*number as u64)),
            AttrList::Float(all) => all.iter().for_each(|number| self.number(number.to_bits().into())),
            AttrList::Bool(all) => all.iter().for_each(|flag| self.number((*flag).into())),
            AttrList::Type(all) => all.iter().for_each(|dtype| self.dtype(*dtype)),
            AttrList::Shape(all) => all.iter().for_each(|shape| self.shape(shape)),
            AttrList::Tensor(all) => all.iter().for_each(|tensor| self.tensor(tensor)),
            AttrList::Func(all) => all.iter().for_each(|func| self.func(func)),
        }
    }

    fn dtype(&mut self, dtype: DType) {
        self.number(dtype.number() as u64);
    }

    fn shape(&mut self, shape: &PartialShape) {
        let Some(dims) = shape.dims() else { return self.number(u64::MAX) };
        self.number(dims.len() as u64);
        dims.iter().for_each(|dim| self.number(dim.map_or(u64::MAX, |size| size as u64)));
    }

    /// Adds a tensor of numbers or strings.
    fn tensor(&mut self, tensor: &Tensor) {
        self.dtype(tensor.dtype());
        self.shape(&tensor.shape().into());
        match (tensor.as_strings(), tensor.bytes()) {
            (Ok(strings), _) => {
                // A tensor may hold one large string many times.
                let mut hashes = FxHashMap::default();
                for string in strings {
                    let place = (string.as_ptr(), string.len());
                    self.number(string.len() as u64);
                    self.number(*hashes.entry(place).or_insert_with(|| hash64(string)));
                }
            }
            (_, Ok(bytes)) => self.number(hash64(bytes)),
            _ => {}
        }
    }

    /// Adds an input of a node.
    fn input(&mut self, tensor: &Tensor) -> Result<()> {
        self.tensor(tensor);
        for handle in tensor.as_resources().unwrap_or_default() {
            // The contents of other objects can change what the dataset computes.
            if !is_neutral(&handle.type_name) {
                let message =
                    format!("the fingerprint of a dataset that holds a resource: {}", handle.type_name);
                return Err(Error::unimplemented(message));
            }
            self.text(handle.type_name.as_bytes());
        }
        for variant in tensor.as_variants().unwrap_or_default() {
            let Some(dataset) = variant.get::<DatasetVariant>() else {
                return Err(Error::unimplemented(format!(
                    "the fingerprint of a dataset that holds {}",
                    variant.object().map_or("an empty variant", |object| object.type_name())
                )));
            };
            self.number(dataset.dataset.fingerprint()?);
        }
        Ok(())
    }

    fn func(&mut self, func: &FuncAttr) {
        let places = self.places.entry(func.name.clone()).or_default();
        let place = match places.iter().copied().find(|&place| self.named[place].attrs == func.attrs) {
            Some(place) => place,
            None => {
                places.push(self.named.len());
                if places.len() == 1 {
                    self.bodies.push(self.named.len());
                }
                self.named.push(func.clone());
                self.named.len() - 1
            }
        };
        self.number(place as u64);
    }

    /// Adds the bodies of the named functions, and returns the hash.
    fn finish(mut self) -> u64 {
        let (mut next, mut next_body) = (0, 0);
        loop {
            if let Some(func) = self.named.get(next).cloned() {
                next += 1;
                self.attrs(&func.attrs);
                let first = self.places.get(&func.name).and_then(|places| places.first());
                self.number(first.map_or(u64::MAX, |first| *first as u64));
            } else if let Some(&place) = self.bodies.get(next_body) {
                next_body += 1;
                let func = self.named[place].clone();
                let start = self.bytes.len();
                match self.functions.get(&func) {
                    Ok(function) => self.body(&function.def().clone()),
                    Err(_) => self.text(func.name.as_bytes()),
                }
                let hash = hash64(&self.bytes[start..]);
                self.bytes.truncate(start);
                self.number(hash);
            } else {
                return hash64(&self.bytes);
            }
        }
    }

    /// Adds the body of a function; its nodes are named by their places.
    fn body(&mut self, def: &FunctionDef) {
        let args = def.args.iter().map(|arg| &*arg.name);
        let places: FxHashMap<&str, usize> = args
            .chain(def.nodes.iter().map(|node| &*node.name))
            .enumerate()
            .map(|(i, name)| (name, i))
            .collect();
        for arg in &def.args {
            match &arg.ty {
                ArgDefType::Fixed(dtype) => self.dtype(*dtype),
                ArgDefType::Attr(name) | ArgDefType::List(name) => self.text(name.as_bytes()),
            }
            self.text(arg.number_attr.as_deref().unwrap_or_default().as_bytes());
        }
        for node in &def.nodes {
            match ops::lookup(&node.op) {
                Some(_) => self.text(node.op.as_bytes()),
                None => self.func(&FuncAttr { name: node.op.clone(), attrs: node.attrs.clone() }),
            }
            self.text(node.device.as_bytes());
            self.attrs(&node.attrs);
            node.inputs.iter().for_each(|input| self.edge(input, &places));
        }
        self.number(u64::MAX);
        let returned = def.outputs.iter().filter_map(|output| def.returns.get(&output.name));
        let controls = def.control_outputs.iter().filter_map(|output| def.control_returns.get(output));
        returned.chain(controls).for_each(|value| self.edge(value, &places));
    }

    /// Adds the name of a value in a function's body, in which the place replaces the node's name.
    fn edge(&mut self, value: &str, places: &FxHashMap<&str, usize>) {
        let (is_control, value) = value.strip_prefix('^').map_or((false, value), |node| (true, node));
        let (node, output) = value.split_once(':').unwrap_or((value, ""));
        self.number(is_control.into());
        match places.get(node) {
            Some(place) => self.number(*place as u64),
            None => self.text(node.as_bytes()),
        }
        self.text(output.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::dataset::stats::StatsAggregator;
    use bytes::Bytes;
    use graph::{Code, ResourceHandle, Shape};

    fn handle(type_name: &str) -> Tensor {
        Tensor::resource(ResourceHandle {
            device: "d".into(),
            container: "c".into(),
            name: "n".into(),
            hash_code: 0,
            type_name: type_name.into(),
            dtypes_and_shapes: Vec::new(),
        })
    }

    #[test]
    fn only_seeds_and_caches_may_be_resources() {
        let mut digest = Digest::new(&**no_functions());
        for neutral in [SharedSeeds::KIND, SharedCache::KIND, DUMMY] {
            assert_eq!(digest.input(&handle(neutral)), Ok(()));
        }
        let refused = digest.input(&handle(StatsAggregator::KIND)).map_err(|error| error.code());
        assert_eq!(refused, Err(Code::Unimplemented));
    }

    #[test]
    fn large_strings_are_not_copied() -> Result<()> {
        let mut digest = Digest::new(&**no_functions());
        let large = Bytes::from(vec![b'a'; 1 << 16]);
        digest.tensor(&Tensor::strings(vec![large; 1000], Shape::new(&[1000])?)?);
        assert!(digest.bytes.len() < 20_000, "{}", digest.bytes.len());
        Ok(())
    }
}

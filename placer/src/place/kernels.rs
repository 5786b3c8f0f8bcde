//! The device types that can run a node, looked up once for each op and combination of types.

use crate::device_set::DeviceSet;
use crate::error::Result;
use graph::ops::spec::{Arg, ArgType, AttrKind};
use graph::{AttrValue, Attrs, DType, Node, Op};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The queries about registered kernels that the placer needs.
pub trait Kernels {
    /// Returns the priority, mostly 0, of a device type's kernel for the node, or `None` if the device type
    /// has no kernel. The result must depend only on the node's op and on its attributes of kind `type`.
    fn priority(&self, device_type: &str, node: &Node) -> Option<i32>;

    /// Lists the kernels of an op for error messages, one on each line. Each line starts with two spaces and
    /// ends with a newline: `  device='CPU'; T in [DT_FLOAT]`. An op without kernels gives the line `  <no
    /// registered kernels>`.
    fn registered(&self, op: &str) -> String;
}

/// Device types that have a kernel, as indices in [`DeviceSet::types`], each with the kernel's priority, in order of
/// preference.
pub(super) type Types = SmallVec<[(u32, i32); 2]>;

/// The index of a [`Types`] list in [`Signatures`].
pub(super) type TypesId = u32;

/// Returns TensorFlow's rank of a device type; the highest rank is preferred.
fn type_rank(device_type: &str) -> i32 {
    match device_type {
        "GPU" => 210,
        "CPU" => 70,
        _ => 50,
    }
}

/// The facts about a node that follow from its op and type attributes: the device types that can run it, and its use of
/// references and resources.
#[derive(Clone, Copy, Debug)]
pub(super) struct Signature {
    pub(super) types: TypesId,
    /// Set if an input may be a reference or a resource.
    pub(super) takes_state: bool,
    pub(super) outputs: Outputs,
}

/// The number and kind of a node's outputs, as far as the placer distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outputs {
    /// Exactly one output.
    One { is_ref: bool, dtype: DType },
    /// No output, several outputs, or a number of outputs that depends on the node.
    Other,
}

impl Outputs {
    /// Returns whether the only output is a reference or a resource.
    pub(super) fn is_state(self) -> bool {
        matches!(self, Outputs::One { is_ref, dtype } if is_ref || dtype == DType::Resource)
    }

    /// Returns whether the only output is not a reference.
    pub(super) fn is_one_value(self) -> bool {
        matches!(self, Outputs::One { is_ref: false, .. })
    }
}

/// Caches of signatures and of lists of device types, in which each distinct entry occurs once.
pub(super) struct Signatures<'a> {
    kernels: &'a dyn Kernels,
    devices: &'a DeviceSet,
    /// The type attributes of each op that was looked up, by the op's index.
    type_attrs: Vec<Option<TypeAttrs>>,
    cached: FxHashMap<(u32, u64), Signature>,
    lists: Vec<Types>,
    list_ids: FxHashMap<Types, TypesId>,
    merged: FxHashMap<(TypesId, TypesId), Option<TypesId>>,
    remote: FxHashMap<TypesId, TypesId>,
}

/// The names and default types of an op's type attributes; `None` if an attribute is a list of types, or if there are
/// more than the eight whose types fit into a 64-bit key.
type TypeAttrs = Option<SmallVec<[(&'static str, u8); 4]>>;

impl<'a> Signatures<'a> {
    pub(super) fn new(kernels: &'a dyn Kernels, devices: &'a DeviceSet) -> Signatures<'a> {
        Signatures {
            kernels,
            devices,
            type_attrs: Vec::new(),
            cached: FxHashMap::default(),
            lists: Vec::new(),
            list_ids: FxHashMap::default(),
            merged: FxHashMap::default(),
            remote: FxHashMap::default(),
        }
    }

    pub(super) fn types(&self, id: TypesId) -> &Types {
        &self.lists[id as usize]
    }

    /// Returns the node's signature, from the cache if it is cached.
    pub(super) fn of(&mut self, node: &Node) -> Result<Signature> {
        let Some(key) = self.key(node) else { return self.compute(node) };
        if let Some(&cached) = self.cached.get(&key) {
            return Ok(cached);
        }
        let signature = self.compute(node)?;
        self.cached.insert(key, signature);
        Ok(signature)
    }

    /// Returns the key of a node's signature in the cache: the op's index, and the types in its attributes, packed into
    /// 64 bits. Returns `None` if the types cannot be packed.
    fn key(&mut self, node: &Node) -> Option<(u32, u64)> {
        let index = node.op.index;
        if self.type_attrs.len() <= index {
            self.type_attrs.resize_with(index + 1, || None);
        }
        let names = self.type_attrs[index].get_or_insert_with(|| type_attrs(node.op)).as_ref()?;
        let mut packed = 0u64;
        for &(name, default) in names {
            let dtype = match node.attrs.get(name) {
                Some(AttrValue::Type(dtype)) => dtype.number() as u8,
                _ => default,
            };
            packed = packed << 8 | u64::from(dtype);
        }
        Some((index as u32, packed))
    }

    fn compute(&mut self, node: &Node) -> Result<Signature> {
        let mut types = Types::new();
        for (index, device_type) in self.devices.types().iter().enumerate() {
            if let Some(priority) = self.kernels.priority(device_type, node) {
                types.push((index as u32, priority));
            }
        }
        self.sort(&mut types, true);
        let outputs = match &*node.op.outputs {
            [Arg { number_attr: None, ty: ArgType::Fixed(_) | ArgType::Attr(_), is_ref, .. }] => {
                match node.output_types()?.first() {
                    Some(port) => Outputs::One { is_ref: *is_ref, dtype: port.dtype },
                    None => Outputs::Other,
                }
            }
            _ => Outputs::Other,
        };
        let takes_state = node.op.inputs.iter().any(|arg| may_take_state(node.op, arg, &node.attrs));
        Ok(Signature { types: self.intern(types), takes_state, outputs })
    }

    fn intern(&mut self, types: Types) -> TypesId {
        if let Some(&id) = self.list_ids.get(&types) {
            return id;
        }
        let id = self.lists.len() as TypesId;
        self.lists.push(types.clone());
        self.list_ids.insert(types, id);
        id
    }

    /// Sorts device types by descending kernel priority (if `by_priority`) and rank, then by name.
    fn sort(&self, types: &mut Types, by_priority: bool) {
        let names = self.devices.types();
        types.sort_by(|a, b| {
            let rank = |t: &(u32, i32)| {
                (std::cmp::Reverse((if by_priority { t.1 } else { 0 }, type_rank(&names[t.0 as usize]))), t.0)
            };
            let by_rank = rank(a).0.cmp(&rank(b).0);
            by_rank.then_with(|| names[a.0 as usize].cmp(&names[b.0 as usize]))
        });
    }

    /// Adds all device types to the list, for a node requested on another task, whose kernels are not known
    /// to this process.
    pub(super) fn with_remote(&mut self, id: TypesId) -> TypesId {
        if let Some(&cached) = self.remote.get(&id) {
            return cached;
        }
        let mut types = self.types(id).clone();
        for index in 0..self.devices.types().len() as u32 {
            if types.iter().all(|t| t.0 != index) {
                types.push((index, 0));
            }
        }
        self.sort(&mut types, true);
        let with = self.intern(types);
        self.remote.insert(id, with);
        with
    }

    /// Returns the device types that occur in both lists, or `None` if there are none. If the priorities of one list
    /// are all equal, the result has the order of the other list; if the orders contradict each other, it has the order
    /// of [`type_rank`].
    pub(super) fn merge(&mut self, a: TypesId, b: TypesId) -> Option<TypesId> {
        if a == b {
            return Some(a);
        }
        if let Some(&cached) = self.merged.get(&(a, b)) {
            return cached;
        }
        let (first, second) = (self.types(a), self.types(b));
        let kept = |from: &Types, other: &Types| -> Types {
            from.iter().filter(|t| other.iter().any(|o| o.0 == t.0)).copied().collect()
        };
        let (ours, theirs) = (kept(first, second), kept(second, first));
        let is_flat = |types: &Types| types.iter().all(|t| t.1 == types[0].1);
        let same_order = ours.iter().zip(&theirs).all(|(x, y)| x.0 == y.0);
        let merged = if ours.is_empty() {
            None
        } else if is_flat(&theirs) || same_order {
            Some(ours)
        } else if is_flat(&ours) {
            Some(theirs)
        } else {
            let mut types: Types = ours.iter().map(|t| (t.0, 0)).collect();
            self.sort(&mut types, false);
            Some(types)
        };
        let merged = merged.map(|types| self.intern(types));
        self.merged.insert((a, b), merged);
        merged
    }
}

fn type_attrs(op: &Op) -> TypeAttrs {
    let mut names = SmallVec::new();
    for attr in op.attrs.iter().filter(|a| a.kind == AttrKind::Type) {
        if attr.is_list || names.len() == 8 {
            return None;
        }
        let default = match attr.default {
            Some(AttrValue::Type(dtype)) => dtype.number() as u8,
            _ => 0,
        };
        names.push((attr.name, default));
    }
    Some(names)
}

/// Returns whether an argument can be a reference or a resource, which puts the node on the device of the
/// argument's producer.
fn may_take_state(op: &Op, arg: &Arg, attrs: &Attrs) -> bool {
    arg.is_ref
        || match arg.ty {
            ArgType::Fixed(dtype) => dtype == DType::Resource,
            ArgType::Attr(name) => op.attr::<DType>(attrs, name).is_ok_and(|d| d == DType::Resource),
            ArgType::List(name) => {
                op.attr::<Vec<DType>>(attrs, name).is_ok_and(|all| all.contains(&DType::Resource))
            }
        }
}

//! Kernels of lookup tables.

use super::iterator::dataset_thread_kernel;
use crate::objects::dataset::element::stack;
use crate::objects::dataset::{DatasetVariant, ElementSpec, INFINITE, IteratorContext, Pull};
use crate::objects::queue::types_text;
use crate::objects::table::text_file::TextFile;
use crate::objects::table::{Layout, Table, TableKind, key_bytes};
use bytes::Bytes;
use device::Device;
use device::handle::{HandleInput, ObjectName, Owner, hash_of};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::resource::Resource;
use device::{Error, Result};
use graph::DType::{self, Bool, Double, Float, Int32, Int64, Resource as Handle, String as Text, Variant};
use graph::{PartialShape, PortType, ResourceHandle, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The dtypes of keys and values. TensorFlow supports fewer combinations.
const TYPES: &[(&str, &[DType])] = &[
    ("key_dtype", &[Text, Int64, Int32]),
    ("value_dtype", &[Text, Int64, Int32, Float, Double, Bool, Variant, Handle]),
];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("HashTable", TYPES, |init| shared(init, plain(TableKind::Static))),
    KernelDef::of("HashTableV2", TYPES, |init| shared(init, plain(TableKind::Static))),
    KernelDef::of("AnonymousHashTable", TYPES, |init| anonymous(init, plain(TableKind::Static))),
    KernelDef::of("MutableHashTable", TYPES, |init| shared(init, plain(TableKind::Mutable))),
    KernelDef::of("MutableHashTableV2", TYPES, |init| shared(init, plain(TableKind::Mutable))),
    KernelDef::of("AnonymousMutableHashTable", TYPES, |init| anonymous(init, plain(TableKind::Mutable))),
    KernelDef::of("MutableHashTableOfTensors", TYPES, |init| shared(init, of_tensors(init)?)),
    KernelDef::of("MutableHashTableOfTensorsV2", TYPES, |init| shared(init, of_tensors(init)?)),
    KernelDef::of("AnonymousMutableHashTableOfTensors", TYPES, |init| anonymous(init, of_tensors(init)?)),
    KernelDef::of("MutableDenseHashTable", TYPES, |init| shared(init, dense(init)?)),
    KernelDef::of("MutableDenseHashTableV2", TYPES, |init| shared(init, dense(init)?)),
    KernelDef::of("AnonymousMutableDenseHashTable", TYPES, |init| anonymous(init, dense(init)?)),
    KernelDef::of("InitializeTable", &[], |init| operation(init, &[1, 2], &[], initialize)),
    KernelDef::of("InitializeTableV2", &[], |init| operation(init, &[1, 2], &[], initialize)),
    KernelDef::of("InitializeTableFromTextFile", &[], from_text_file),
    KernelDef::of("InitializeTableFromTextFileV2", &[], from_text_file),
    KernelDef::of("InitializeTableFromDataset", &[], from_dataset),
    KernelDef::of("LookupTableFind", &[], |init| operation(init, &[1, 2], &[0], find)),
    KernelDef::of("LookupTableFindV2", &[], |init| operation(init, &[1, 2], &[0], find)),
    KernelDef::of("LookupTableInsert", &[], |init| operation(init, &[1, 2], &[], insert)),
    KernelDef::of("LookupTableInsertV2", &[], |init| operation(init, &[1, 2], &[], insert)),
    KernelDef::of("LookupTableRemoveV2", &[], |init| operation(init, &[1], &[], remove)),
    KernelDef::of("LookupTableImport", &[], |init| operation(init, &[1, 2], &[], import)),
    KernelDef::of("LookupTableImportV2", &[], |init| operation(init, &[1, 2], &[], import)),
    KernelDef::of("LookupTableExport", &[], |init| operation(init, &[], &[0, 1], export)),
    KernelDef::of("LookupTableExportV2", &[], |init| operation(init, &[], &[0, 1], export)),
    KernelDef::of("LookupTableSize", &[], |init| operation(init, &[], &[], size)),
    KernelDef::of("LookupTableSizeV2", &[], |init| operation(init, &[], &[], size)),
];

/// A function `(context, name)` that creates the table of a node, given the node's inputs.
type MakeTable = Box<dyn Fn(&KernelContext<'_>, Arc<str>) -> Result<Table> + Send + Sync>;

fn types_of(ctx: &KernelContext<'_>) -> Result<(DType, DType)> {
    let node = ctx.node();
    Ok((node.attr::<DType>("key_dtype")?, node.attr::<DType>("value_dtype")?))
}

fn plain(kind: TableKind) -> MakeTable {
    Box::new(move |ctx, name| {
        let (key, value) = types_of(ctx)?;
        let layout = Layout { key, value, key_shape: Shape::scalar(), value_shape: Shape::scalar() };
        Table::new(name, kind.clone(), layout)
    })
}

/// Returns the declared shape of the values, which must be vectors.
fn value_shape(init: &KernelInit<'_>) -> Result<Shape> {
    let declared = init.attr::<PartialShape>("value_shape")?;
    match declared.as_shape() {
        Some(shape) if shape.rank() == 1 => Ok(shape),
        Some(shape) => Err(Error::invalid(format!("Default value must be a vector, got shape {shape}"))),
        None => Err(Error::invalid(format!("value_shape must be known, got {declared}"))),
    }
}

fn of_tensors(init: &KernelInit<'_>) -> Result<MakeTable> {
    let value_shape = value_shape(init)?;
    Ok(Box::new(move |ctx, name| {
        let (key, value) = types_of(ctx)?;
        let layout = Layout { key, value, key_shape: Shape::scalar(), value_shape: value_shape.clone() };
        Table::new(name, TableKind::Mutable, layout)
    }))
}

fn dense(init: &KernelInit<'_>) -> Result<MakeTable> {
    let declared = init.attr::<PartialShape>("value_shape")?;
    let Some(value_shape) = declared.as_shape().filter(|shape| shape.rank() <= 1) else {
        device::invalid!("Empty value must be a scalar or a vector, got shape {declared}");
    };
    let buckets = init.attr::<i64>("initial_num_buckets")?;
    let load = init.attr::<f32>("max_load_factor")?;
    Ok(Box::new(move |ctx, name| {
        let (key, value) = types_of(ctx)?;
        if !(load > 0.0 && load < 1.0) {
            device::invalid!("max_load_factor must be between 0 and 1, got: {load}");
        }
        let empty = ctx.input(0)?;
        let key_shape = empty.shape().clone();
        if key_shape.rank() > 1 {
            device::invalid!("Empty key must be a scalar or a vector, got shape {key_shape}");
        }
        if buckets <= 0 || buckets & (buckets - 1) != 0 {
            device::invalid!("Number of buckets must be at least 4 and a power of 2, got: {buckets}");
        }
        let one = |tensor: &Tensor| -> Result<Bytes> {
            let keys = key_bytes(tensor, key_shape.num_elements())?;
            Ok(keys.first().map(|key| Bytes::copy_from_slice(key)).unwrap_or_default())
        };
        let deleted = match ctx.num_inputs() {
            0 | 1 => None,
            _ => {
                let deleted = ctx.input(1)?;
                if *deleted.shape() != key_shape {
                    device::invalid!(
                        "Empty and deleted keys must have same shape, got shapes: {key_shape} and {}",
                        deleted.shape()
                    );
                }
                Some(one(deleted)?)
            }
        };
        let empty = one(empty)?;
        if deleted.as_ref() == Some(&empty) {
            device::invalid!("Empty and deleted keys cannot be equal");
        }
        let layout = Layout { key, value, key_shape: key_shape.clone(), value_shape: value_shape.clone() };
        Table::new(name, TableKind::Dense { empty, deleted }, layout)
    }))
}

fn shared(init: &KernelInit<'_>, make: MakeTable) -> Result<Kernel> {
    let by_node = init.attr::<bool>("use_node_name_sharing")?;
    Owner::new(init, ObjectName::of(init, by_node)?).kernel(
        move |ctx, name| make(ctx, name.clone()),
        |ctx, table: &Table| {
            let (key, value) = types_of(ctx)?;
            table.check_same(key, value)
        },
    )
}

/// The owner of an anonymous table, which removes the table at the end of the step that created it.
#[derive(Debug)]
struct AnonymousTableOwner {
    device: Arc<Device>,
    handle: ResourceHandle,
}

impl Resource for AnonymousTableOwner {
    const KIND: &'static str = "AnonymousTable";
}

impl Drop for AnonymousTableOwner {
    fn drop(&mut self) {
        self.device.resources().remove::<Table>(&self.handle.container, &self.handle.name);
    }
}

/// Makes the kernel that creates a new table in each run.
fn anonymous(_: &KernelInit<'_>, make: MakeTable) -> Result<Kernel> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    Kernel::sync(move |ctx| {
        let name: Arc<str> = format!("_AnonymousTable{}", NEXT.fetch_add(1, Ordering::Relaxed)).into();
        let store = ctx.resources();
        let handle = ResourceHandle {
            device: ctx.device().name().to_string().into(),
            container: store.default_container().clone(),
            name: name.clone(),
            hash_code: hash_of(Table::KIND),
            type_name: Table::KIND.into(),
            dtypes_and_shapes: Vec::new(),
        };
        store.lookup_or_create(&handle.container, &name, || make(ctx, name.clone()))?;
        let of_step = || Ok(AnonymousTableOwner { device: ctx.device().clone(), handle: handle.clone() });
        ctx.step().resources.lookup_or_create("", &name, of_step)?;
        ctx.set_output(0, Tensor::resource(handle));
        Ok(())
    })
}

/// Makes the kernel of an operation on a table; `inputs` and `outputs` are the indices of the node's inputs and outputs
/// that are, in turn, keys and values.
fn operation(
    init: &KernelInit<'_>,
    inputs: &'static [usize],
    outputs: &'static [usize],
    run: fn(&mut KernelContext<'_>, &Table) -> Result<()>,
) -> Result<Kernel> {
    let handle = HandleInput::<Table>::default();
    let have = (init.inputs.to_vec(), init.outputs.to_vec());
    Kernel::sync(move |ctx| {
        let value = ctx.take_value(0);
        let table = handle.get(ctx.device(), &value)?;
        check_ports(&table, &have, inputs, outputs)?;
        run(ctx, &table)
    })
}

fn check_ports(
    table: &Table,
    (have_in, have_out): &(Vec<PortType>, Vec<PortType>),
    inputs: &[usize],
    outputs: &[usize],
) -> Result<()> {
    let layout = table.layout();
    let types = [layout.key, layout.value];
    let (mut want_in, mut want_out) = (have_in.clone(), have_out.clone());
    for (&place, dtype) in inputs.iter().zip(types) {
        want_in[place].dtype = dtype;
    }
    match outputs {
        [one] => want_out[*one].dtype = layout.value,
        several => several.iter().zip(types).for_each(|(&place, dtype)| want_out[place].dtype = dtype),
    }
    if want_in == *have_in && want_out == *have_out {
        return Ok(());
    }
    let text = |inputs: &[PortType], outputs: &[PortType]| {
        let handle = if inputs[0].is_ref { "string_ref" } else { "resource" };
        let dtypes = |ports: &[PortType]| types_text(&ports.iter().map(|p| p.dtype).collect::<Vec<_>>());
        let rest = dtypes(&inputs[1..]);
        let comma = if rest.is_empty() { "" } else { ", " };
        format!("{handle}{comma}{rest}->{}", dtypes(outputs))
    };
    device::invalid!(
        "Signature mismatch, have: {} expected: {}",
        text(have_in, have_out),
        text(&want_in, &want_out)
    )
}

fn initialize(ctx: &mut KernelContext<'_>, table: &Table) -> Result<()> {
    table.initialize(ctx.input(1)?, ctx.input(2)?)
}

/// `InitializeTableFromDataset`: fills a table with the keys and values of a dataset.
fn from_dataset(_: &KernelInit<'_>) -> Result<Kernel> {
    let handle = HandleInput::<Table>::default();
    dataset_thread_kernel(move |ctx| {
        let table = handle.get(&ctx.device, &ctx.inputs[0])?;
        let dataset = DatasetVariant::of(ctx.input(1)?)?;
        let layout = table.layout();
        let wanted = ElementSpec::scalars(&[layout.key, layout.value]);
        wanted.check(&dataset.spec)?;
        if dataset.cardinality == INFINITE {
            device::invalid!("a table cannot be filled from a dataset that does not end");
        }
        if table.is_initialized() {
            return Ok(SmallVec::new());
        }
        let pull = Pull { cancellation: ctx.step.cancellation.clone() };
        let mut iterator = dataset.iterator(&IteratorContext::root(dataset.deterministic))?;
        let mut elements = Vec::new();
        while let Some(element) = iterator.next(&pull)? {
            pull.check()?;
            wanted.check(&ElementSpec::of(&element))?;
            elements.push(element);
        }
        let column = |i: usize| match elements.is_empty() {
            true => Ok(Tensor::zeros(wanted.dtypes[i], Shape::new(&[0])?)?),
            false => stack(&elements.iter().map(|element| &element[i]).collect::<Vec<_>>(), i),
        };
        table.initialize(&column(0)?, &column(1)?)?;
        Ok(SmallVec::new())
    })
}

fn find(ctx: &mut KernelContext<'_>, table: &Table) -> Result<()> {
    let values = table.find(ctx.input(1)?, ctx.input(2)?)?;
    ctx.set_output(0, values);
    Ok(())
}

fn insert(ctx: &mut KernelContext<'_>, table: &Table) -> Result<()> {
    table.insert(ctx.input(1)?, ctx.input(2)?)
}

fn remove(ctx: &mut KernelContext<'_>, table: &Table) -> Result<()> {
    table.remove(ctx.input(1)?)
}

fn import(ctx: &mut KernelContext<'_>, table: &Table) -> Result<()> {
    table.import(ctx.input(1)?, ctx.input(2)?)
}

fn export(ctx: &mut KernelContext<'_>, table: &Table) -> Result<()> {
    let (keys, values) = table.export()?;
    ctx.set_output(0, keys);
    ctx.set_output(1, values);
    Ok(())
}

fn size(ctx: &mut KernelContext<'_>, table: &Table) -> Result<()> {
    ctx.set_output(0, Tensor::from(i64::try_from(table.len()).unwrap_or(i64::MAX)));
    Ok(())
}

fn from_text_file(init: &KernelInit<'_>) -> Result<Kernel> {
    let delimiter = init.attr::<String>("delimiter")?;
    let [delimiter] = *delimiter.as_bytes() else { device::invalid!("delimiter should be only 1 char") };
    let file = TextFile {
        key_index: init.attr("key_index")?,
        value_index: init.attr("value_index")?,
        vocab_size: init.attr("vocab_size")?,
        delimiter,
        offset: init.attr("offset")?,
    };
    let handle = HandleInput::<Table>::default();
    Kernel::sync(move |ctx| {
        let value = ctx.take_value(0);
        let table = handle.get(ctx.device(), &value)?;
        let [path] = ctx.input(1)?.as_strings()? else {
            device::invalid!("filename should be a single string, but got {}", ctx.input(1)?.shape());
        };
        let path = std::str::from_utf8(path).map_err(|_| Error::invalid("filename is no text"))?;
        if path.is_empty() {
            device::invalid!("filename cannot be empty.");
        }
        if table.is_initialized() {
            return Ok(());
        }
        let (keys, values) = file.read(path, table.layout().key, table.layout().value)?;
        table.initialize(&keys, &values)
    })
}

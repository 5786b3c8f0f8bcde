//! Kernels that compress the components of an element into one variant, and back.

use crate::objects::dataset::argument::tensors;
use bytes::Bytes;
use device::kernel::{Kernel, KernelDef};
use device::{Error, Result};
use graph::tensor::{MAX_NESTING, VariantObject};
use graph::{Code, DType, Shape, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("CompressElement", &[], |_| {
        Kernel::sync(|ctx| {
            let compressed = CompressedElement::of(tensors(ctx, 0..ctx.num_inputs())?)?;
            ctx.set_output(0, Tensor::variant(compressed));
            Ok(())
        })
    }),
    KernelDef::of("UncompressElement", &[], |init| {
        let dtypes = init.attr::<Vec<DType>>("output_types")?;
        Kernel::sync(move |ctx| {
            let input = ctx.input(0)?;
            let [variant] = input.as_variants()? else {
                device::invalid!(
                    "UncompressElement requires its input to be a scalar, but encountered an input with {} dimensions.",
                    input.shape().rank()
                );
            };
            let Some(compressed) = variant.get::<CompressedElement>() else {
                device::invalid!(
                    "Input does not contain a compressed element. Instead got {}",
                    variant.object().map_or("nothing", |object| object.type_name())
                );
            };
            let components = compressed.components()?;
            compressed.check(&dtypes)?;
            for (i, component) in components.into_iter().enumerate() {
                ctx.set_output(i, component);
            }
            Ok(())
        })
    }),
];

/// The components of an element, compressed together by Snappy.
#[derive(Debug)]
struct CompressedElement {
    parts: Vec<CompressedPart>,
    data: Bytes,
    /// Depth of nested variants, this one included.
    depth: usize,
}

/// The form of one component.
#[derive(Debug)]
enum CompressedPart {
    /// Plain elements, whose bytes are in the compressed data.
    Plain(DType, Shape),
    /// Strings of these lengths, whose bytes are in the compressed data.
    Strings(Vec<usize>, Shape),
    /// Objects, which are not compressed.
    Objects(Tensor),
}

impl VariantObject for CompressedElement {
    fn type_name(&self) -> &'static str {
        "tensorflow.data.CompressedElement"
    }

    fn nesting(&self) -> usize {
        self.depth
    }
}

impl CompressedElement {
    /// Compresses the components.
    ///
    /// # Errors
    /// `ResourceExhausted` if the components have 4 GiB or more, or variants are nested too deep.
    fn of(components: Vec<Tensor>) -> Result<CompressedElement> {
        let mut bytes = Vec::new();
        let mut parts = Vec::new();
        let mut depth = 1;
        for tensor in components {
            match tensor.dtype() {
                DType::String => {
                    let strings = tensor.as_strings()?;
                    strings.iter().for_each(|string| bytes.extend_from_slice(string));
                    let lengths = strings.iter().map(Bytes::len).collect();
                    parts.push(CompressedPart::Strings(lengths, tensor.shape().clone()));
                }
                DType::Variant | DType::Resource => {
                    let objects = tensor.as_variants().unwrap_or_default().iter().filter_map(|v| v.object());
                    depth = objects.map(|object| object.nesting() + 1).max().unwrap_or(1).max(depth);
                    parts.push(CompressedPart::Objects(tensor));
                }
                dtype => {
                    bytes.extend_from_slice(tensor.bytes()?);
                    parts.push(CompressedPart::Plain(dtype, tensor.shape().clone()));
                }
            }
        }
        if depth > MAX_NESTING {
            let message = format!("variants are nested deeper than {MAX_NESTING}");
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        let too_large = |_| {
            let message = format!("an element of {} bytes is too large to be compressed", bytes.len());
            Error::new(Code::ResourceExhausted, message)
        };
        let data = snap::raw::Encoder::new().compress_vec(&bytes).map_err(too_large)?;
        Ok(CompressedElement { parts, data: data.into(), depth })
    }

    /// Checks that the components have these dtypes.
    ///
    /// # Errors
    /// `FailedPrecondition` if the number of components or a dtype differs.
    fn check(&self, dtypes: &[DType]) -> Result<()> {
        let differs = |message: String| Err(Error::new(Code::FailedPrecondition, message));
        if dtypes.len() != self.parts.len() {
            return differs(format!(
                "Expected {} outputs from uncompress, but got {}",
                dtypes.len(),
                self.parts.len()
            ));
        }
        let of = |part: &CompressedPart| match part {
            CompressedPart::Plain(dtype, _) => *dtype,
            CompressedPart::Strings(..) => DType::String,
            CompressedPart::Objects(tensor) => tensor.dtype(),
        };
        match dtypes.iter().zip(&self.parts).find(|(dtype, part)| **dtype != of(part)) {
            Some((dtype, part)) => {
                differs(format!("Expected a tensor of type {dtype} but got a tensor of type {}", of(part)))
            }
            None => Ok(()),
        }
    }

    /// Returns the components.
    fn components(&self) -> Result<Vec<Tensor>> {
        let damaged = || Error::internal("a compressed element is damaged");
        let bytes = snap::raw::Decoder::new().decompress_vec(&self.data).map_err(|_| damaged())?;
        let mut rest = Bytes::from(bytes);
        let mut take = |count: usize| {
            if count > rest.len() { Err(damaged()) } else { Ok(rest.split_to(count)) }
        };
        let component = |part: &CompressedPart| match part {
            CompressedPart::Objects(tensor) => Ok(tensor.clone()),
            CompressedPart::Strings(lengths, shape) => {
                let strings = lengths.iter().map(|length| take(*length)).collect::<Result<Vec<_>>>()?;
                Ok(Tensor::strings(strings, shape.clone())?)
            }
            CompressedPart::Plain(dtype, shape) => {
                let size = dtype.size().ok_or_else(damaged)? * shape.num_elements();
                Ok(Tensor::from_bytes(*dtype, shape.clone(), &take(size)?)?)
            }
        };
        self.parts.iter().map(component).collect()
    }
}

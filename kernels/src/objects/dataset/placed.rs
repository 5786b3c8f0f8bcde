//! Elements that are in a device's own memory, or partly so. Datasets, which only pass them on, see one variant in place of
//! their components.

use super::{Element, ElementSpec};
use device::Device;
use device::Result;
use device::value::{Held, Item, Placed, Value};
use graph::{DType, Tensor, VariantObject};
use smallvec::{SmallVec, smallvec};

/// The components of one element.
#[derive(Debug)]
struct Components(Vec<Placed>);

impl VariantObject for Components {
    fn type_name(&self) -> &'static str {
        "anabranch::Components"
    }
}

/// What a function on this device gave, as an element.
///
/// # Errors
/// Those of [`Device::keep`]; `Internal` for what is no tensor.
pub(super) fn element(device: &Device, values: SmallVec<[Value; 4]>) -> Result<Element> {
    if values.iter().all(|value| value.on_host().is_some()) {
        return values.into_iter().map(Tensor::of).collect();
    }
    let kept = values.into_iter().map(|value| Placed::kept(value, device)).collect::<Result<_>>()?;
    Ok(vec![Tensor::variant(Components(kept))])
}

/// An element's components, in whichever memory each is.
pub(crate) fn components(element: Element) -> SmallVec<[Value; 4]> {
    match held(&element) {
        Some(held) => held.0.iter().cloned().map(Value::from).collect(),
        None => element.into_iter().map(Value::Host).collect(),
    }
}

/// These as arguments of a function: where one is an element, its components.
pub(super) fn arguments(elements: Element) -> impl Iterator<Item = Value> {
    elements.into_iter().flat_map(|tensor| match tensor.dtype() {
        DType::Variant => components(vec![tensor]),
        _ => smallvec![Value::Host(tensor)],
    })
}

/// What an element is, as [`ElementSpec::of`] says it, wherever it is.
pub(crate) fn spec_of(element: &[Tensor]) -> ElementSpec {
    let Some(held) = held(element) else { return ElementSpec::of(element) };
    ElementSpec {
        dtypes: held.0.iter().map(Held::dtype).collect(),
        shapes: held.0.iter().map(|component| component.shape().into()).collect(),
    }
}

fn held(element: &[Tensor]) -> Option<&Components> {
    let [tensor] = element else { return None };
    let [variant] = tensor.as_variants().ok()? else { return None };
    variant.get()
}

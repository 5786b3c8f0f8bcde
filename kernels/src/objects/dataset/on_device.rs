//! Elements with components in device memory. Datasets pass elements on without reading them, so an element of this
//! kind is represented by one variant that holds all components.

use super::{Element, ElementSpec};
use device::Device;
use device::Result;
use device::value::{AnyTensor, Item, ListElement, Value};
use graph::{DType, Tensor, VariantObject};
use smallvec::{SmallVec, smallvec};

/// The components of an element of which at least one is in device memory.
#[derive(Debug)]
struct Components(Vec<AnyTensor>);

impl VariantObject for Components {
    fn type_name(&self) -> &'static str {
        "anabranch::Components"
    }
}

/// Converts the results of a function on `device` into an element.
///
/// # Errors
/// The errors of [`Device::keep`]; `Internal` for a value that is not a tensor.
pub(super) fn element(device: &Device, values: SmallVec<[Value; 4]>) -> Result<Element> {
    if values.iter().all(|value| value.on_host().is_some()) {
        return values.into_iter().map(Tensor::of).collect();
    }
    let placed =
        values.into_iter().map(|value| AnyTensor::persisted(value, device)).collect::<Result<_>>()?;
    Ok(vec![Tensor::variant(Components(placed))])
}

/// Returns an element's components, each in host or device memory.
pub(crate) fn components(element: Element) -> SmallVec<[Value; 4]> {
    match device_components(&element) {
        Some(held) => held.0.iter().cloned().map(Value::from).collect(),
        None => element.into_iter().map(Value::Host).collect(),
    }
}

/// Returns the arguments of a function call; an element with components in device memory is expanded into its
/// components.
pub(super) fn arguments(elements: Element) -> impl Iterator<Item = Value> {
    elements.into_iter().flat_map(|tensor| match tensor.dtype() {
        DType::Variant => components(vec![tensor]),
        _ => smallvec![Value::Host(tensor)],
    })
}

/// Returns the spec of an element like [`ElementSpec::of`], for components in host or device memory.
pub(crate) fn spec_of(element: &[Tensor]) -> ElementSpec {
    let Some(held) = device_components(element) else { return ElementSpec::of(element) };
    ElementSpec {
        dtypes: held.0.iter().map(ListElement::dtype).collect(),
        shapes: held.0.iter().map(|component| component.shape().into()).collect(),
    }
}

fn device_components(element: &[Tensor]) -> Option<&Components> {
    let [tensor] = element else { return None };
    let [variant] = tensor.as_variants().ok()? else { return None };
    variant.get()
}

//! Optional values, held by variants.

use super::{OpDef, Traits};
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "OptionalFromValue",
        inputs: &["components: Toutput_types"],
        outputs: &["optional: variant"],
        attrs: &["Toutput_types: list(type) >= 1"],
        infer: scalar,
        ..OpDef::NEW
    },
    OpDef { name: "OptionalNone", outputs: &["optional: variant"], infer: scalar, ..OpDef::NEW },
    OpDef {
        name: "OptionalHasValue",
        inputs: &["optional: variant"],
        outputs: &["has_value: bool"],
        traits: Traits::METADATA,
        infer: scalar,
        ..OpDef::NEW
    },
    OpDef {
        name: "OptionalGetValue",
        inputs: &["optional: variant"],
        outputs: &["components: output_types"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: |infer| {
            let shapes = infer.attr::<Vec<PartialShape>>("output_shapes")?;
            if shapes.len() != infer.num_outputs() {
                crate::invalid!(
                    "`output_types` and `output_shapes` must be the same length, are {} and {}",
                    infer.num_outputs(),
                    shapes.len()
                );
            }
            shapes.into_iter().enumerate().for_each(|(i, shape)| infer.set(i, shape));
            Ok(())
        },
        ..OpDef::NEW
    },
];

fn scalar(infer: &mut Infer<'_>) -> crate::error::Result<()> {
    infer.set(0, PartialShape::scalar());
    Ok(())
}

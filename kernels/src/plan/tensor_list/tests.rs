use crate::testing::run_op;
use device::{Error, Result};
use graph::{AttrValue, DType, Tensor, TensorList};

const FLOAT: (&str, AttrValue) = ("element_dtype", AttrValue::Type(DType::Float));
const INT: (&str, AttrValue) = ("shape_type", AttrValue::Type(DType::Int32));

fn one(op: &str, inputs: &[Tensor], attrs: &[(&str, AttrValue)]) -> Result<Tensor> {
    run_op(op, inputs, attrs)?.into_iter().next().ok_or_else(|| Error::internal("no output"))
}

fn refused(result: Result<Tensor>) -> String {
    result.err().map(|e| e.to_string()).unwrap_or_default()
}

/// Returns a list of the rows of a matrix.
fn rows() -> Result<Tensor> {
    let matrix = Tensor::from_slice(&[1f32, 2., 3., 4., 5., 6.], graph::Shape::new(&[3, 2])?)?;
    one("TensorListFromTensor", &[matrix, Tensor::vector(&[2i32])?], &[FLOAT, INT])
}

#[test]
fn elements_are_set_read_pushed_and_popped() -> Result<()> {
    let list = rows()?;
    let shape = Tensor::vector(&[-1i32])?;
    let item =
        |list: &Tensor, i: i32| one("TensorListGetItem", &[list.clone(), i.into(), shape.clone()], &[FLOAT]);
    assert_eq!(item(&list, 1)?, Tensor::vector(&[3f32, 4.])?);
    let set = one("TensorListSetItem", &[list.clone(), 1i32.into(), Tensor::vector(&[9f32, 9.])?], &[FLOAT])?;
    assert_eq!(
        (item(&set, 1)?, item(&list, 1)?),
        (Tensor::vector(&[9f32, 9.])?, Tensor::vector(&[3f32, 4.])?)
    );
    assert_eq!(refused(item(&list, 3)), "Trying to access element 3 in a list with 3 elements.");
    let pushed = one("TensorListPushBack", &[list.clone(), Tensor::vector(&[7f32, 8.])?], &[FLOAT])?;
    assert_eq!(one("TensorListLength", std::slice::from_ref(&pushed), &[])?, Tensor::from(4i32));
    let popped = run_op("TensorListPopBack", &[pushed, shape.clone()], &[FLOAT])?;
    assert_eq!(popped[1], Tensor::vector(&[7f32, 8.])?);
    let wrong = one("TensorListPushBack", &[list, Tensor::vector(&[7f32])?], &[FLOAT]);
    assert!(refused(wrong).starts_with("Tried to append a tensor with incompatible shape to a list."));
    Ok(())
}

#[test]
fn an_unshared_list_is_changed_in_place() -> Result<()> {
    let list = rows()?;
    let address = |list: &Tensor| -> Result<*const TensorList> {
        Ok(list.as_variants()?[0].get::<TensorList>().map_or(std::ptr::null(), std::ptr::from_ref))
    };
    let before = address(&list)?;
    let mut inputs = vec![list, Tensor::vector(&[0f32, 0.])?];
    let op = graph::ops::lookup("TensorListPushBack").ok_or_else(|| Error::internal("no op"))?;
    let node = graph::Node::new("n", op).with_attr("element_dtype", DType::Float);
    let run =
        |inputs: Vec<Tensor>| crate::testing::run_node(&node, inputs.into_iter().map(Into::into).collect());
    let out = run(std::mem::take(&mut inputs))?;
    let [device::Value::Host(grown)] = &out[..] else { return Err(Error::internal("no tensor")) };
    assert_eq!(address(grown)?, before);
    let again = run(vec![grown.clone(), Tensor::vector(&[0f32, 0.])?])?;
    let [device::Value::Host(copy)] = &again[..] else { return Err(Error::internal("no tensor")) };
    assert_ne!(address(copy)?, before);
    Ok(())
}

#[test]
fn lists_convert_to_tensors_and_back() -> Result<()> {
    let list = rows()?;
    let shape = Tensor::vector(&[-1i32])?;
    let stacked = one("TensorListStack", &[list.clone(), shape.clone()], &[FLOAT])?;
    assert_eq!(
        (stacked.shape().dims(), stacked.values::<f32>()?),
        (&[3, 2][..], &[1f32, 2., 3., 4., 5., 6.][..])
    );
    let wrong =
        one("TensorListStack", &[list.clone(), shape.clone()], &[FLOAT, ("num_elements", 2i64.into())]);
    assert_eq!(refused(wrong), "Operation expected a list with 2 elements but got a list with 3 elements.");
    let gathered =
        one("TensorListGather", &[list.clone(), Tensor::vector(&[2i32, 0])?, shape.clone()], &[FLOAT])?;
    assert_eq!(gathered.values::<f32>()?, [5., 6., 1., 2.]);
    let joined = run_op(
        "TensorListConcatV2",
        &[list.clone(), shape.clone(), Tensor::vector::<i64>(&[])?],
        &[FLOAT, INT],
    )?;
    assert_eq!(
        (joined[0].values::<f32>()?, joined[1].values::<i64>()?),
        (&[1f32, 2., 3., 4., 5., 6.][..], &[2i64, 2, 2][..])
    );
    let parts = [joined[0].clone(), shape.clone(), Tensor::vector(&[1i64, 0, 5])?];
    let split = one("TensorListSplit", &parts, &[FLOAT, INT])?;
    assert_eq!(one("TensorListLength", &[split], &[])?, Tensor::from(3i32));
    let sparse = [stacked, Tensor::vector(&[4i32, 0, 1])?, Tensor::vector(&[2i32])?, 6i32.into()];
    let scattered = one("TensorListScatterV2", &sparse, &[FLOAT, INT])?;
    let all = one("TensorListStack", &[scattered, shape], &[FLOAT])?;
    assert_eq!(all.values::<f32>()?, [3., 4., 5., 6., 0., 0., 0., 0., 1., 2., 0., 0.]);
    Ok(())
}

#[test]
fn uninitialized_elements_are_zeros_once_their_shape_is_known() -> Result<()> {
    let of = |shape: &[i32]| -> Result<Tensor> {
        one("TensorListReserve", &[Tensor::vector(shape)?, 2i32.into()], &[FLOAT, INT])
    };
    let any = Tensor::from(-1i32);
    let item = |list: Tensor| one("TensorListGetItem", &[list, 0i32.into(), any.clone()], &[FLOAT]);
    assert_eq!(item(of(&[2])?)?, Tensor::vector(&[0f32, 0.])?);
    assert!(refused(item(of(&[-1])?)).contains("is not fully defined"));
    let too_many = one("TensorListReserve", &[any.clone(), i32::MIN.into()], &[FLOAT, INT]);
    assert!(refused(too_many).contains("must be a non negative number"));
    let sum = one("AddN", &[rows()?, rows()?], &[("T", DType::Variant.into()), ("N", 2i64.into())])?;
    let stacked = one("TensorListStack", &[sum, any.clone()], &[FLOAT])?;
    assert_eq!(stacked.values::<f32>()?, [2., 4., 6., 8., 10., 12.]);
    let zeros = one("ZerosLike", &[rows()?], &[("T", DType::Variant.into())])?;
    assert_eq!(one("TensorListStack", &[zeros, any], &[FLOAT])?.values::<f32>()?, [0.; 6]);
    Ok(())
}

#[test]
fn the_nesting_depth_of_variants_is_limited() -> Result<()> {
    let variant = [("element_dtype", DType::Variant.into()), INT];
    let mut list = one("EmptyTensorList", &[Tensor::from(-1i32), Tensor::from(-1i32)], &variant)?;
    let mut refused = None;
    for _ in 0..graph::tensor::MAX_NESTING + 1 {
        let empty = one("EmptyTensorList", &[Tensor::from(-1i32), Tensor::from(-1i32)], &variant)?;
        match one("TensorListPushBack", &[empty, list.clone()], &variant[..1]) {
            Ok(deeper) => list = deeper,
            Err(error) => refused = Some(error.code()),
        }
    }
    assert_eq!(refused, Some(graph::Code::ResourceExhausted));
    Ok(())
}

/// Each level contains the next level twice, so that visiting all tensors one by one would never end.
#[test]
fn the_number_of_tensors_in_nested_variants_is_limited() -> Result<()> {
    let variant = [("element_dtype", DType::Variant.into()), INT];
    let empty = || one("EmptyTensorList", &[Tensor::from(-1i32), Tensor::from(-1i32)], &variant);
    let twice = |inner: &Tensor| {
        let first = one("TensorListPushBack", &[empty()?, inner.clone()], &variant[..1])?;
        one("TensorListPushBack", &[first, inner.clone()], &variant[..1])
    };
    let mut list = twice(&empty()?)?;
    let mut levels = 1;
    let refused = loop {
        match twice(&list) {
            Ok(deeper) => (list, levels) = (deeper, levels + 1),
            Err(error) => break error,
        }
    };
    assert_eq!((refused.code(), levels), (graph::Code::ResourceExhausted, 23), "{refused}");
    // A tensor that was removed from the list is not counted.
    let popped = run_op("TensorListPopBack", &[list, Tensor::from(-1i32)], &variant[..1])?;
    one("TensorListPushBack", &popped, &variant[..1])?;
    Ok(())
}

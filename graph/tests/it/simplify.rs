//! Tests of simplification on graphs in the text format: rewrites that apply, and rewrites that must not apply.

use anabranch_graph::passes::{Simplification, SimplifyOptions, prune, simplify, validate};
use anabranch_graph::{DType, Error, Graph, Node, NodeId, Output, Result, Tensor, ops};
use expect_test::{Expect, expect};

/// Checks the simplified graph; the nodes in `keep` are given by name, separated by spaces.
fn check(keep: &str, text: &str, expected: Expect) -> Result<()> {
    let after = simplified(&Graph::from_text(text)?, Simplification::ALL, keep)?;
    expected.assert_eq(&after.to_text());
    Ok(())
}

/// Simplifies the graph, and asserts that a second application changes nothing.
fn simplified(graph: &Graph, kinds: &[Simplification], keep: &str) -> Result<Graph> {
    let after = simplify(graph, &SimplifyOptions { keep: &found(graph, keep)?, kinds })?;
    validate(&after)?;
    let again = simplify(&after, &SimplifyOptions { keep: &found(&after, keep)?, kinds })?;
    assert_eq!(again.to_text(), after.to_text(), "once is not enough");
    prune(&after, &found(&after, keep)?)
}

fn found(graph: &Graph, names: &str) -> Result<Vec<NodeId>> {
    let find = |name: &str| graph.find(name).ok_or_else(|| Error::invalid(format!("no node {name}")));
    names.split_whitespace().map(find).collect()
}

#[test]
fn identity_nodes_are_removed() -> Result<()> {
    check(
        "out elsewhere kept after",
        r#"
        x = Placeholder[dtype=float] @"/device:CPU:0"
        a = Identity[T=float](x) @"/device:CPU:0"
        b = StopGradient[T=float](a) @"/device:CPU:0"
        c = PreventGradient[T=float](b) @"/device:CPU:0"
        d = AddN[N=1, T=float](c) @"/device:CPU:0"
        kept = Identity[T=float](d) @"/device:CPU:0"
        after = NoOp(^d) @"/device:CPU:0"
        first = NoOp @"/device:CPU:0"
        ordered = StopGradient[T=float](d, ^first) @"/device:CPU:0"
        out = Neg[T=float](ordered) @"/device:CPU:0"
        away = Identity[T=float](d) @"/device:CPU:1"
        there = StopGradient[T=float](away) @"/device:CPU:1"
        anchor = StopGradient[T=float](d) @"/device:CPU:0"
        elsewhere = AddN[N=3, T=float, _class=["loc:@anchor"]](there, anchor, kept) @"/device:CPU:1"
        "#,
        expect![[r#"
            x = Placeholder[dtype=float] @"/device:CPU:0"
            kept = Identity[T=float](x) @"/device:CPU:0"
            after = NoOp(^x) @"/device:CPU:0"
            first = NoOp @"/device:CPU:0"
            ordered = Identity[T=float](x, ^first) @"/device:CPU:0"
            out = Neg[T=float](ordered) @"/device:CPU:0"
            away = Identity[T=float](x) @"/device:CPU:1"
            anchor = Identity[T=float](x) @"/device:CPU:0"
            elsewhere = AddN[N=3, T=float, _class=["loc:@anchor"]](away, anchor, kept) @"/device:CPU:1"
        "#]],
    )
}

#[test]
fn reads_of_references_are_not_moved() -> Result<()> {
    check(
        "out shape",
        r#"
        v = VariableV2[dtype=float, shape=<2>]
        read = Identity[T=float](v)
        also = StopGradient[T=float](read)
        one = Const[dtype=float, value=float<>{1.0}]
        scaled = Mul[T=float](read, one)
        n = Neg[T=float](read)
        nn = Neg[T=float](n)
        sum = AddN[N=3, T=float](also, scaled, nn)
        once = StopGradient[T=float](sum)
        out = Neg[T=float](once)
        shape = Shape[T=float](read)
        "#,
        expect![[r#"
            v = VariableV2[dtype=float, shape=<2>]
            read = Identity[T=float](v)
            also = StopGradient[T=float](read)
            one = Const[dtype=float, value=float<>{1.0}]
            scaled = Mul[T=float](read, one)
            n = Neg[T=float](read)
            nn = Neg[T=float](n)
            sum = AddN[N=3, T=float](also, scaled, nn)
            out = Neg[T=float](sum)
            shape = Shape[T=float](read)
        "#]],
    )
}

#[test]
fn ops_with_neutral_operands_are_removed() -> Result<()> {
    check(
        "floats ints bools",
        r#"
        x = Placeholder[dtype=float]
        one = Const[dtype=float, value=float<>{1.0}]
        zero = Const[dtype=float, value=float<>{0.0}]
        minus_zero = Const[dtype=float, value=float<>{-0.0}]
        m = Mul[T=float](one, x)
        d = RealDiv[T=float](m, one)
        p = Pow[T=float](d, one)
        s = Sub[T=float](p, zero)
        a = AddV2[T=float](minus_zero, s)
        floats = Neg[T=float](a)
        i = Placeholder[dtype=int32]
        i1 = Const[dtype=int32, value=int32<>{1}]
        i0 = Const[dtype=int32, value=int32<>{0}]
        im = Mul[T=int32](i, i1)
        id = FloorDiv[T=int32](im, i1)
        ia = AddV2[T=int32](i0, id)
        is = Sub[T=int32](ia, i0)
        io = BitwiseOr[T=int32](is, i0)
        negated = Sub[T=int32](i0, io)
        two = Const[dtype=int32, value=int32<>{2}]
        square = Pow[T=int32](negated, two)
        ints = Invert[T=int32](square)
        b = Placeholder[dtype=bool]
        yes = Const[dtype=bool, value=bool<>{true}]
        no = Const[dtype=bool, value=bool<>{false}]
        and = LogicalAnd(b, yes)
        or = LogicalOr(no, and)
        n = LogicalNot(or)
        bools = LogicalAnd(n, b)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            floats = Neg[T=float](x)
            i = Placeholder[dtype=int32]
            negated = Neg[T=int32](i)
            square = Square[T=int32](negated)
            ints = Invert[T=int32](square)
            b = Placeholder[dtype=bool]
            n = LogicalNot(b)
            bools = LogicalAnd(n, b)
        "#]],
    )
}

#[test]
fn ops_that_change_a_bit_or_the_shape_stay() -> Result<()> {
    let text = r#"
        %versions producer=21 min_consumer=0
        x = Placeholder[dtype=float]
        zero = Const[dtype=float, value=float<>{0.0}]
        minus_zero = Const[dtype=float, value=float<>{-0.0}]
        added = AddV2[T=float](x, zero)
        taken = Sub[T=float](added, minus_zero)
        from = Sub[T=float](zero, taken)
        times_zero = Mul[T=float](from, zero)
        one = Const[dtype=float, value=float<>{1.0}]
        under = RealDiv[T=float](one, times_zero)
        floor = FloorDiv[T=float](under, one)
        two = Const[dtype=float, value=float<>{2.0}]
        squared = Pow[T=float](floor, two)
        ones = Const[dtype=float, value=float<2>{1.0, 1.0}]
        wider = Mul[T=float](squared, ones)
        row = Const[dtype=float, value=float<1,2>{1.0, 1.0}]
        higher = Mul[T=float](wider, row)
        mixed = Const[dtype=float, value=float<2>{1.0, 2.0}]
        last = Mul[T=float](higher, mixed)
        c = Placeholder[dtype=complex64]
        c1 = Const[dtype=complex64, value=complex64<>{0x0000803f00000000}]
        cm = Mul[T=complex64](c, c1)
        i = Placeholder[dtype=int32]
        i0 = Const[dtype=int32, value=int32<>{0}]
        im = Mul[T=int32](i, i0)
        "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(simplified(&graph, Simplification::ALL, "last cm im")?, graph);
    Ok(())
}

#[test]
fn integer_products_with_zero_are_zeros() -> Result<()> {
    check(
        "out",
        r#"
        i = Placeholder[dtype=int32]
        shape = Const[dtype=int32, value=int32<1>{3}]
        three = Reshape[T=int32](i, shape)
        i0 = Const[dtype=int32, value=int32<>{0}]
        zeros = Mul[T=int32](i0, three)
        out = Neg[T=int32](zeros)
        "#,
        expect![[r#"
            i = Placeholder[dtype=int32]
            shape = Const[dtype=int32, value=int32<1>{3}]
            three = Reshape[T=int32](i, shape)
            zeros = Const[dtype=int32, value=int32<3>{0, ...}](^three)
            out = Neg[T=int32](zeros)
        "#]],
    )
}

#[test]
fn ops_that_undo_each_other_are_removed() -> Result<()> {
    check(
        "out flag narrow back",
        r#"
        x = Placeholder[dtype=float]
        a = Neg[T=float](x)
        b = Neg[T=float](a)
        out = Relu[T=float](b)
        l = Placeholder[dtype=bool]
        n = LogicalNot(l)
        m = LogicalNot(n)
        flag = LogicalAnd(m, n)
        i = Placeholder[dtype=int32]
        same = Cast[SrcT=int32, DstT=int32](i)
        wide = Cast[SrcT=int32, DstT=int64](same)
        double = Cast[SrcT=int32, DstT=double](same)
        long = Cast[SrcT=int64, DstT=int16](wide)
        round = Cast[SrcT=double, DstT=int32](double)
        back = Neg[T=int32](round)
        narrow = Cast[SrcT=int16, DstT=int32](long)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            out = Relu[T=float](x)
            l = Placeholder[dtype=bool]
            n = LogicalNot(l)
            flag = LogicalAnd(l, n)
            i = Placeholder[dtype=int32]
            long = Cast[DstT=int16, SrcT=int32, Truncate=false](i)
            back = Neg[T=int32](i)
            narrow = Cast[DstT=int32, SrcT=int16](long)
        "#]],
    )
}

#[test]
fn casts_that_lose_precision_stay() -> Result<()> {
    let text = r#"
        %versions producer=21 min_consumer=0
        i = Placeholder[dtype=int32]
        short = Cast[DstT=int16, SrcT=int32](i)
        back = Cast[DstT=int32, SrcT=int16](short)
        float = Cast[DstT=float, SrcT=int32](back)
        int = Cast[DstT=int32, SrcT=float](float)
        unsigned = Cast[DstT=uint64, SrcT=int32](int)
        wide = Cast[DstT=int64, SrcT=uint64](unsigned)
        "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(simplified(&graph, Simplification::ALL, "wide")?, graph);
    Ok(())
}

#[test]
fn known_shapes_become_constants() -> Result<()> {
    check(
        "sizes partly open",
        r#"
        x = Placeholder[dtype=float]
        known = Const[dtype=int32, value=int32<2>{2, 3}]
        first = NoOp
        y = Reshape[T=float](x, known, ^first) @"/device:CPU:0"
        shape = Shape[T=float](y) @"/device:CPU:0"
        rank = Rank[T=float](y) @"/device:CPU:0"
        size = Size[T=float, out_type=int64](y) @"/device:CPU:0"
        wide = Cast[SrcT=int32, DstT=int64](shape)
        shapes = ShapeN[N=2, T=float](x, y)
        sizes = IdentityN[T=[int64, int32, int64, int32, int32]](wide, rank, size, shapes:1, shape)
        w = Const[dtype=float, value=float<3,4>{1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}]
        product = MatMul[T=float](x, w)
        of_product = Shape[T=float](product)
        b1 = Const[dtype=int32, value=int32<1>{1}]
        b2 = Const[dtype=int32, value=int32<1>{2}]
        columns = StridedSlice[T=int32, Index=int32, shrink_axis_mask=1](of_product, b1, b2, b1)
        partly = Neg[T=int32](columns)
        open = Neg[T=int32](of_product)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            known = Const[dtype=int32, value=int32<2>{2, 3}]
            first = NoOp
            y = Reshape[T=float](x, known, ^first) @"/device:CPU:0"
            shape = Const[dtype=int32, value=int32<2>{2, 3}](^y) @"/device:CPU:0"
            rank = Const[dtype=int32, value=int32<>{2}](^y) @"/device:CPU:0"
            size = Const[dtype=int64, value=int64<>{6}](^y) @"/device:CPU:0"
            wide = Const[dtype=int64, value=int64<2>{2, 3}](^y)
            shapes/output_1 = Const[dtype=int32, value=int32<2>{2, 3}](^x, ^y)
            sizes = IdentityN[T=[int64, int32, int64, int32, int32]](wide, rank, size, shapes/output_1, shape)
            w = Const[dtype=float, value=float<3,4>{1.0, ...}]
            product = MatMul[T=float](x, w)
            of_product = Shape[T=float](product)
            columns = Const[dtype=int32, value=int32<>{4}](^product)
            partly = Neg[T=int32](columns)
            open = Neg[T=int32](of_product)
        "#]],
    )
}

#[test]
fn shape_constants_are_alive_only_with_their_tensor() -> Result<()> {
    check(
        "out",
        r#"
        p = Placeholder[dtype=bool]
        x = Const[dtype=float, value=float<2>{1.0, 2.0}]
        s = Switch[T=float](x, p)
        of_switch = Shape[T=float](s:1)
        other = Relu[T=float](s)
        of_other = Shape[T=float](other)
        out = Merge[N=2, T=int32](of_switch, of_other)
        "#,
        expect![[r#"
            p = Placeholder[dtype=bool]
            x = Const[dtype=float, value=float<2>{1.0, 2.0}]
            s = Switch[T=float](x, p)
            of_switch = Shape[T=float](s:1)
            other = Relu[T=float](s)
            of_other = Const[dtype=int32, value=int32<1>{2}](^other)
            out = Merge[N=2, T=int32](of_switch, of_other)
        "#]],
    )
}

#[test]
fn reshapes_to_the_same_shape_are_removed() -> Result<()> {
    check(
        "same tail not_same",
        r#"
        x = Placeholder[dtype=float]
        w = Const[dtype=float, value=float<2,2>{1.0, 2.0, 3.0, 4.0}]
        product = MatMul[T=float](x, w)
        to = Const[dtype=int32, value=int32<2>{-1, 2}]
        again = Reshape[T=float](product, to)
        shape = Shape[T=float](again)
        once_more = Reshape[T=float](again, shape)
        same = Neg[T=float](once_more)
        flat = Const[dtype=int32, value=int32<1>{-1}]
        flattened = Reshape[T=float](product, flat)
        pairs = Reshape[T=float](flattened, to)
        tail = Neg[T=float](pairs)
        four = Const[dtype=int32, value=int32<2>{-1, 4}]
        by_four = Reshape[T=float](product, four)
        not_same = Reshape[T=float](by_four, to)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            w = Const[dtype=float, value=float<2,2>{1.0, 2.0, 3.0, 4.0}]
            product = MatMul[T=float](x, w)
            to = Const[dtype=int32, value=int32<2>{-1, 2}]
            same = Neg[T=float](product)
            tail = Neg[T=float](product)
            four = Const[dtype=int32, value=int32<2>{-1, 4}]
            by_four = Reshape[T=float](product, four)
            not_same = Reshape[T=float](by_four, to)
        "#]],
    )
}

#[test]
fn ops_that_move_no_elements_are_removed() -> Result<()> {
    check(
        "out",
        r#"
        p = Placeholder[dtype=float]
        shape = Const[dtype=int32, value=int32<2>{1, 3}]
        x = Reshape[T=float](p, shape)
        wide = BroadcastTo[T=float](x, shape)
        ones = Const[dtype=int32, value=int32<2>{1, 1}]
        tiled = Tile[T=float](wide, ones)
        none = Const[dtype=int32, value=int32<2,2>{0, 0, 0, 0}]
        padded = Pad[T=float](tiled, none)
        zeros = Const[dtype=int32, value=int32<2>{0, 0}]
        rest = Const[dtype=int32, value=int32<2>{-1, -1}]
        sliced = Slice[T=float, Index=int32](padded, zeros, rest)
        strided = StridedSlice[T=float, Index=int32, begin_mask=3, end_mask=3](sliced, zeros, zeros, ones)
        axis = Const[dtype=int32, value=int32<1>{0}]
        reversed = ReverseV2[T=float](strided, axis)
        perm = Const[dtype=int32, value=int32<2>{0, 1}]
        transposed = Transpose[T=float](reversed, perm)
        one = Const[dtype=int32, value=int32<>{1}]
        expanded = ExpandDims[T=float](transposed, one)
        squeezed = Squeeze[T=float, squeeze_dims=[-2]](expanded)
        out = Neg[T=float](squeezed)
        "#,
        expect![[r#"
            p = Placeholder[dtype=float]
            shape = Const[dtype=int32, value=int32<2>{1, 3}]
            x = Reshape[T=float](p, shape)
            out = Neg[T=float](x)
        "#]],
    )
}

#[test]
fn ops_that_move_elements_stay() -> Result<()> {
    let text = r#"
        %versions producer=21 min_consumer=0
        p = Placeholder[dtype=float]
        shape = Const[dtype=int32, value=int32<2>{2, 2}]
        x = Reshape[T=float](p, shape)
        tiled = Tile[T=float](p, ones)
        ones = Const[dtype=int32, value=int32<2>{1, 2}]
        zeros = Const[dtype=int32, value=int32<2>{0, 0}]
        back = Const[dtype=int32, value=int32<2>{-1, 1}]
        strided = StridedSlice[Index=int32, T=float, begin_mask=3, end_mask=3](x, zeros, zeros, back)
        axis = Const[dtype=int32, value=int32<1>{0}]
        reversed = ReverseV2[T=float](strided, axis)
        perm = Const[dtype=int32, value=int32<2>{1, 0}]
        transposed = Transpose[T=float](reversed, perm)
        squeezed = Squeeze[T=float](p)
        both = AddN[N=3, T=float](transposed, squeezed, tiled)
        "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(simplified(&graph, Simplification::ALL, "both")?, graph);
    Ok(())
}

#[test]
fn transpositions_in_a_row_are_combined() -> Result<()> {
    check(
        "out turned products batch complex",
        r#"
        x = Placeholder[dtype=float]
        swap = Const[dtype=int32, value=int32<2>{1, 0}]
        t = Transpose[T=float](x, swap)
        tt = Transpose[T=float](t, swap)
        out = Neg[T=float](tt)
        y = Placeholder[dtype=float]
        left = Const[dtype=int32, value=int32<3>{1, 2, 0}]
        l = Transpose[T=float](y, left)
        right = Transpose[T=float](l, left)
        turned = Neg[T=float](right)
        product = MatMul[T=float, transpose_b=true](t, t)
        products = Neg[T=float](product)
        last = Const[dtype=int32, value=int32<3>{0, 2, 1}]
        b = Transpose[T=float](y, last)
        adjoint = BatchMatMulV2[T=float, adj_y=true](l, b)
        batch = Neg[T=float](adjoint)
        z = Placeholder[dtype=complex64]
        zt = Transpose[T=complex64](z, swap)
        zl = Transpose[T=complex64](z, last)
        not_adjoint = BatchMatMulV2[T=complex64](zt, zl)
        matrices = MatMul[T=complex64](zt, z)
        complex = AddN[N=2, T=complex64](not_adjoint, matrices)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            swap = Const[dtype=int32, value=int32<2>{1, 0}]
            t = Transpose[T=float](x, swap)
            out = Neg[T=float](x)
            y = Placeholder[dtype=float]
            left = Const[dtype=int32, value=int32<3>{1, 2, 0}]
            l = Transpose[T=float](y, left)
            right/constant = Const[dtype=int32, value=int32<3>{2, 0, 1}]
            right = Transpose[T=float, Tperm=int32](y, right/constant)
            turned = Neg[T=float](right)
            product = MatMul[T=float, transpose_b=true](t, t)
            products = Neg[T=float](product)
            last = Const[dtype=int32, value=int32<3>{0, 2, 1}]
            b = Transpose[T=float](y, last)
            adjoint = BatchMatMulV2[T=float, adj_y=true](l, b)
            batch = Neg[T=float](adjoint)
            z = Placeholder[dtype=complex64]
            zt = Transpose[T=complex64](z, swap)
            zl = Transpose[T=complex64](z, last)
            not_adjoint = BatchMatMulV2[T=complex64](zt, zl)
            matrices = MatMul[T=complex64](zt, z)
            complex = AddN[N=2, T=complex64](not_adjoint, matrices)
        "#]],
    )
}

#[test]
fn reductions_of_single_elements_are_removed() -> Result<()> {
    check(
        "out kept",
        r#"
        p = Placeholder[dtype=float]
        shape = Const[dtype=int32, value=int32<3>{1, 3, 1}]
        x = Reshape[T=float](p, shape)
        none = Const[dtype=int32, value=int32<0>{}]
        a = Sum[T=float](x, none)
        outer = Const[dtype=int32, value=int32<2>{0, -1}]
        b = Mean[T=float, keep_dims=true](a, outer)
        c = Max[T=float](b, outer)
        out = Neg[T=float](c)
        all = Const[dtype=int32, value=int32<1>{1}]
        kept = Sum[T=float](x, all)
        "#,
        expect![[r#"
            p = Placeholder[dtype=float]
            shape = Const[dtype=int32, value=int32<3>{1, 3, 1}]
            x = Reshape[T=float](p, shape)
            c = Squeeze[T=float, squeeze_dims=[0, 2]](x)
            out = Neg[T=float](c)
            all = Const[dtype=int32, value=int32<1>{1}]
            kept = Sum[T=float](x, all)
        "#]],
    )
}

#[test]
fn gradients_of_operands_that_were_not_broadcast_are_not_summed() -> Result<()> {
    // The graph is the gradient of a dense layer with an unknown batch size.
    check(
        "dh db",
        r#"
        x = Placeholder[dtype=float]
        w = Const[dtype=float, value=float<2,2>{1.0, 2.0, 3.0, 4.0}]
        h = MatMul[T=float](x, w)
        b = Const[dtype=float, value=float<2>{1.0, 2.0}]
        z = AddV2[T=float](h, b)
        r = Relu[T=float](z)
        dy = Mul[T=float](r, r)
        dz = ReluGrad[T=float](dy, r)
        of_h = Shape[T=float](h)
        of_b = Const[dtype=int32, value=int32<1>{2}]
        args = BroadcastGradientArgs(of_h, of_b)
        sum_h = Sum[T=float](dz, args)
        back_h = Reshape[T=float](sum_h, of_h)
        dh = Neg[T=float](back_h)
        sum_b = Sum[T=float](dz, args:1)
        back_b = Reshape[T=float](sum_b, of_b)
        db = Neg[T=float](back_b)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            w = Const[dtype=float, value=float<2,2>{1.0, 2.0, 3.0, 4.0}]
            h = MatMul[T=float](x, w)
            b = Const[dtype=float, value=float<2>{1.0, 2.0}]
            z = AddV2[T=float](h, b)
            r = Relu[T=float](z)
            dy = Mul[T=float](r, r)
            dz = ReluGrad[T=float](dy, r)
            args/output_1 = Const[dtype=int32, value=int32<1>{0}](^h)
            dh = Neg[T=float](dz)
            sum_b = Sum[T=float](dz, args/output_1)
            db = Neg[T=float](sum_b)
        "#]],
    )
}

#[test]
fn gradients_of_operands_of_equal_shape_are_not_summed() -> Result<()> {
    check(
        "out",
        r#"
        x = Placeholder[dtype=float]
        y = Tanh[T=float](x)
        product = Mul[T=float](x, y)
        of_x = Shape[T=float](x)
        of_y = Shape[T=float](y)
        args = BroadcastGradientArgs(of_x, of_y)
        dx = Sum[T=float](product, args)
        back = Reshape[T=float](dx, of_x)
        out = Neg[T=float](back)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            y = Tanh[T=float](x)
            product = Mul[T=float](x, y)
            out = Neg[T=float](product)
        "#]],
    )
}

/// A residual block on images of unknown size; the convolutions `c` and `d` that are added have the same output size,
/// because the total stride is two on both paths.
const RESIDUAL_BLOCK: &str = r#"
        %versions producer=21 min_consumer=0
        x = Placeholder[dtype=float]
        dy = Placeholder[dtype=float]
        v = Placeholder[dtype=float]
        whole = Const[dtype=float, value=float<3,3,1,1>{1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}]
        point = Const[dtype=float, value=float<1,1,1,1>{1.0}]
        pads = Const[dtype=int32, value=int32<4,2>{0, 0, 1, 1, 1, 1, 0, 0}]
        padded = Pad[T=float](x, pads)
        a = Conv2D[T=float, strides=[1, 2, 2, 1], padding="VALID"](padded, whole)
        b = FusedBatchNormV3[T=float, U=float](a, v, v, v, v)
        c = Conv2D[T=float, strides=[1, 1, 1, 1], padding="SAME"](b, whole)
        d = Conv2D[T=float, strides=[1, 2, 2, 1], padding="PADDING"](x, point)
        sum = AddV2[T=float](c, d)
        dz = ReluGrad[T=float](dy, sum)
        of_c = Shape[T=float](c)
        of_d = Shape[T=float](d)
        args = BroadcastGradientArgs(of_c, of_d)
        sum_c = Sum[T=float](dz, args)
        dc = Reshape[T=float](sum_c, of_c)
        sum_d = Sum[T=float](dz, args:1)
        dd = Reshape[T=float](sum_d, of_d)
        both = Mul[T=float](dc, dd)
        "#;

#[test]
fn gradients_of_operands_behind_equal_windows_are_not_summed() -> Result<()> {
    for padding in ["SAME", "VALID"] {
        let graph = Graph::from_text(&RESIDUAL_BLOCK.replace("PADDING", padding))?;
        let after = simplified(&graph, Simplification::ALL, "both")?;
        let find = |name: &str| after.find(name).ok_or_else(|| Error::invalid(format!("no node {name}")));
        let (both, dz) = (find("both")?, find("dz")?);
        assert!(after.inputs(both).iter().all(|input| input.node == dz), "{}", after.to_text());
        assert!(after.find("args").is_none(), "{}", after.to_text());
    }
    // Replacements that give the two paths different strides, window widths or window starts, so that their output
    // sizes may differ.
    for (from, to) in [
        ("[1, 2, 2, 1], padding=\"PADDING\"", "[1, 3, 3, 1], padding=\"SAME\""),
        ("PADDING\"](x, point)", "VALID\"](x, whole)"),
        ("0, 0, 1, 1, 1, 1, 0, 0", "0, 0, 0, 1, 1, 1, 0, 0"),
    ] {
        let graph = Graph::from_text(&RESIDUAL_BLOCK.replace(from, to).replace("PADDING", "SAME"))?;
        let after = simplified(&graph, Simplification::ALL, "both")?;
        assert!(after.find("args").is_some(), "{}", after.to_text());
    }
    Ok(())
}

/// A reference variable may be assigned a value of another shape between two reads.
#[test]
fn two_reads_of_a_reference_may_have_different_shapes() -> Result<()> {
    let text = r#"
        %versions producer=21 min_consumer=0
        v = VariableV2[dtype=float, shape=SHAPE]
        x = Placeholder[dtype=float]
        of_v = Shape[T=float](v)
        y = Reshape[T=float](x, of_v)
        z = Neg[T=float](v)
        of_y = Shape[T=float](y)
        of_z = Shape[T=float](z)
        args = BroadcastGradientArgs(of_y, of_z)
        sum = Sum[T=float](y, args)
        out = Neg[T=float](sum)
        "#;
    let has_gradient_args = |shape: &str| -> Result<bool> {
        let graph = Graph::from_text(&text.replace("SHAPE", shape))?;
        Ok(simplified(&graph, Simplification::ALL, "out")?.find("args").is_some())
    };
    assert_eq!(
        (has_gradient_args("<*>")?, has_gradient_args("<?,2>")?, has_gradient_args("<3,2>")?),
        (true, true, false)
    );
    Ok(())
}

#[test]
fn gradients_of_operands_that_may_have_been_broadcast_are_summed() -> Result<()> {
    let text = r#"
        %versions producer=21 min_consumer=0
        x = Placeholder[dtype=float]
        y = Placeholder[dtype=float]
        z = AddV2[T=float](x, y)
        of_x = Shape[T=float](x)
        of_y = Shape[T=float](y)
        args = BroadcastGradientArgs(of_x, of_y)
        sum = Sum[T=float](z, args)
        back = Reshape[T=float](sum, of_x)
        "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(simplified(&graph, Simplification::ALL, "back")?, graph);
    Ok(())
}

#[test]
fn a_constant_condition_selects_one_side() -> Result<()> {
    check(
        "out open",
        r#"
        p = Placeholder[dtype=float]
        shape = Const[dtype=int32, value=int32<1>{2}]
        x = Reshape[T=float](p, shape)
        y = Const[dtype=float, value=float<2>{1.0, 2.0}]
        yes = Const[dtype=bool, value=bool<2>{true, true}]
        no = Const[dtype=bool, value=bool<>{false}]
        a = Select[T=float](yes, x, y)
        b = SelectV2[T=float](no, y, a)
        out = Neg[T=float](b)
        open = SelectV2[T=float](no, y, p)
        "#,
        expect![[r#"
            p = Placeholder[dtype=float]
            shape = Const[dtype=int32, value=int32<1>{2}]
            x = Reshape[T=float](p, shape)
            y = Const[dtype=float, value=float<2>{1.0, 2.0}]
            no = Const[dtype=bool, value=bool<>{false}]
            out = Neg[T=float](x)
            open = SelectV2[T=float](no, y, p)
        "#]],
    )
}

#[test]
fn the_product_of_all_sizes_is_the_number_of_elements() -> Result<()> {
    check(
        "count",
        r#"
        x = Placeholder[dtype=float]
        shape = Shape[T=float, out_type=int64](x)
        axis = Const[dtype=int32, value=int32<1>{0}]
        product = Prod[T=int64](shape, axis)
        count = Neg[T=int64](product)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            product = Size[T=float, out_type=int64](x)
            count = Neg[T=int64](product)
        "#]],
    )
}

#[test]
fn a_pack_of_one_tensor_becomes_expand_dims() -> Result<()> {
    check(
        "out",
        r#"
        x = Placeholder[dtype=float]
        packed = Pack[N=1, T=float, axis=1](x)
        out = Neg[T=float](packed)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            packed/constant = Const[dtype=int32, value=int32<>{1}]
            packed = ExpandDims[T=float, Tdim=int32](x, packed/constant)
            out = Neg[T=float](packed)
        "#]],
    )
}

#[test]
fn iterations_and_aliveness_are_preserved() -> Result<()> {
    check(
        "out",
        r#"
        start = Const[dtype=float, value=float<2,2>{1.0, 2.0, 3.0, 4.0}]
        enter = Enter[T=float, frame_name="loop"](start)
        merge = Merge[N=2, T=float](enter, next)
        bound = Const[dtype=float, value=float<>{9.0}](^merge)
        axes = Const[dtype=int32, value=int32<2>{0, 1}](^merge)
        sum = Sum[T=float](merge, axes)
        less = Less[T=float](sum, bound)
        more = LoopCond(less)
        switch = Switch[T=float](merge, more)
        exit = Exit[T=float](switch)
        at = Identity[T=float](switch:1)
        swap = Const[dtype=int32, value=int32<2>{1, 0}](^at)
        one = Const[dtype=float, value=float<>{1.0}](^at)
        t = Transpose[T=float](at, swap)
        scaled = Mul[T=float](t, one)
        shape = Shape[T=float](scaled)
        again = Reshape[T=float](scaled, shape)
        turned = Transpose[T=float](again, swap)
        packed = Pack[N=1, T=float](turned)
        alone = Const[dtype=int32, value=int32<1>{0}](^at)
        body = Sum[T=float](packed, alone)
        next = NextIteration[T=float](body)
        out = Neg[T=float](exit)
        "#,
        expect![[r#"
            start = Const[dtype=float, value=float<2,2>{1.0, 2.0, 3.0, 4.0}]
            enter = Enter[T=float, frame_name="loop"](start)
            merge = Merge[N=2, T=float](enter, next)
            bound = Const[dtype=float, value=float<>{9.0}](^merge)
            axes = Const[dtype=int32, value=int32<2>{0, 1}](^merge)
            sum = Sum[T=float](merge, axes)
            less = Less[T=float](sum, bound)
            more = LoopCond(less)
            switch = Switch[T=float](merge, more)
            exit = Exit[T=float](switch)
            at = Identity[T=float](switch:1)
            next = NextIteration[T=float](at)
            out = Neg[T=float](exit)
        "#]],
    )?;
    // `a` is rewritten to `x` and loses the input `one`, but must still be dead when `one` is dead, although `x` does
    // not depend on the Switch.
    check(
        "out",
        r#"
        p = Placeholder[dtype=bool]
        x = Placeholder[dtype=float]
        s = Switch[T=bool](p, p)
        then = Identity[T=bool](s:1)
        one = Const[dtype=float, value=float<>{1.0}](^then)
        a = Mul[T=float](x, one)
        not = Identity[T=bool](s)
        two = Const[dtype=float, value=float<>{2.0}](^not)
        b = Mul[T=float](x, two)
        merged = Merge[N=2, T=float](a, b)
        out = Neg[T=float](merged)
        "#,
        expect![[r#"
            p = Placeholder[dtype=bool]
            x = Placeholder[dtype=float]
            s = Switch[T=bool](p, p)
            then = Identity[T=bool](s:1)
            a = Identity[T=float](x, ^then)
            not = Identity[T=bool](s)
            two = Const[dtype=float, value=float<>{2.0}](^not)
            b = Mul[T=float](x, two)
            merged = Merge[N=2, T=float](a, b)
            out = Neg[T=float](merged)
        "#]],
    )
}

#[test]
fn new_constants_in_loops_belong_to_their_iteration() -> Result<()> {
    check(
        "out",
        r#"
        start = Placeholder[dtype=float]
        enter = Enter[T=float, frame_name="loop"](start)
        merge = Merge[N=2, T=float](enter, next)
        go = Const[dtype=bool, value=bool<>{false}](^merge)
        more = LoopCond(go)
        switch = Switch[T=float](merge, more)
        exit = Exit[T=float](switch)
        at = Relu[T=float](switch:1)
        left = Const[dtype=int32, value=int32<3>{1, 2, 0}](^at)
        l = Transpose[T=float](at, left)
        r = Transpose[T=float](l, left)
        of_switch = Transpose[T=float](switch:1, left)
        also = Transpose[T=float](of_switch, left)
        next = NextIteration[T=float](both)
        both = AddV2[T=float](r, also)
        out = Neg[T=float](exit)
        "#,
        expect![[r#"
            start = Placeholder[dtype=float]
            enter = Enter[T=float, frame_name="loop"](start)
            merge = Merge[N=2, T=float](enter, next)
            go = Const[dtype=bool, value=bool<>{false}](^merge)
            more = LoopCond(go)
            switch = Switch[T=float](merge, more)
            exit = Exit[T=float](switch)
            at = Relu[T=float](switch:1)
            left = Const[dtype=int32, value=int32<3>{1, 2, 0}](^at)
            r/constant = Const[dtype=int32, value=int32<3>{2, 0, 1}](^at)
            r = Transpose[T=float, Tperm=int32](at, r/constant)
            of_switch = Transpose[T=float](switch:1, left)
            also = Transpose[T=float](of_switch, left)
            next = NextIteration[T=float](both)
            both = AddV2[T=float](r, also)
            out = Neg[T=float](exit)
        "#]],
    )
}

#[test]
fn control_inputs_are_preserved() -> Result<()> {
    check(
        "out",
        r#"
        x = Placeholder[dtype=float]
        hook = NoOp
        n = Neg[T=float](x, ^hook)
        nn = Neg[T=float](n)
        other = Placeholder[dtype=float]
        y = Mul[T=float](nn, one)
        one = Const[dtype=float, value=float<>{1.0}](^other)
        out = Relu[T=float](y)
        "#,
        expect![[r#"
            x = Placeholder[dtype=float]
            hook = NoOp
            nn = Identity[T=float](x, ^hook)
            other = Placeholder[dtype=float]
            y = Identity[T=float](nn, ^other)
            out = Relu[T=float](y)
        "#]],
    )
}

#[test]
fn values_of_kept_nodes_are_not_used() -> Result<()> {
    let text = r#"
        %versions producer=21 min_consumer=0
        x = Placeholder[dtype=float]
        fed = Const[dtype=float, value=float<>{1.0}]
        y = Mul[T=float](x, fed)
        n = Neg[T=float](y)
        m = Neg[T=float](n)
        "#;
    let graph = Graph::from_text(text)?;
    assert_eq!(simplified(&graph, Simplification::ALL, "fed n m")?, graph);
    Ok(())
}

#[test]
fn kinds_of_rules_are_switched_separately() -> Result<()> {
    let text = r#"
        x = Placeholder[dtype=float]
        a = StopGradient[T=float](x)
        one = Const[dtype=float, value=float<>{1.0}]
        b = Mul[T=float](a, one)
        c = Neg[T=float](b)
        d = Neg[T=float](c)
        e = Relu[T=float](d)
        s = Shape[T=float](e)
        axis = Const[dtype=int32, value=int32<1>{0}]
        out = Prod[T=int32](s, axis)
        last = Neg[T=int32](out)
        "#;
    let graph = Graph::from_text(text)?;
    let missing = |kind| -> Result<Vec<String>> {
        let after = simplified(&graph, &[kind], "last")?;
        let names = graph.nodes().map(|(_, node)| node.name.to_string());
        Ok(names.filter(|name| after.find(name).is_none()).collect())
    };
    assert_eq!(missing(Simplification::Forwarding)?, ["a"]);
    assert_eq!(missing(Simplification::Constants)?, ["one", "b"]);
    assert_eq!(missing(Simplification::Arithmetic)?, ["c", "d"]);
    assert_eq!(missing(Simplification::Shapes)?, ["s", "axis"]);
    assert_eq!(simplified(&graph, &[], "last")?.len(), graph.len());
    Ok(())
}

#[test]
fn a_chain_of_a_million_nodes_is_simplified() -> Result<()> {
    let op = |name| ops::lookup(name).ok_or_else(|| Error::invalid(format!("no {name}")));
    const LENGTH: usize = 1_000_000;
    let mut graph = Graph::with_capacity(LENGTH, 2 * LENGTH);
    let mut last =
        graph.add(Node::new("x", op("Placeholder")?).with_attr("dtype", DType::Float), &[], &[])?;
    let one = Node::new("one", op("Const")?)
        .with_attr("dtype", DType::Float)
        .with_attr("value", Tensor::scalar(1.0f32));
    let one = graph.add(one, &[], &[])?;
    let typed = |name| Ok::<_, Error>(Node::new("", op(name)?).with_attr("T", DType::Float));
    let (mut mul, mut neg, mut relu) = (typed("Mul")?, typed("Neg")?, typed("Relu")?);
    while graph.len() < LENGTH {
        let i = graph.len();
        mul.name = format!("mul{i}").into();
        neg.name = format!("neg{i}").into();
        relu.name = format!("relu{i}").into();
        last = graph.add(mul.clone(), &[last.into(), one.into()], &[])?;
        last = graph.add(neg.clone(), &[Output::from(last)], &[])?;
        last = graph.add(relu.clone(), &[Output::from(last)], &[])?;
    }
    let products = (graph.len() - 2) / 3;
    let after = simplify(&graph, &SimplifyOptions { keep: &[last], ..SimplifyOptions::DEFAULT })?;
    assert_eq!(after.len(), graph.len() - products);
    Ok(())
}

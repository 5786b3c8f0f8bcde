//! Factors of sparse positive definite matrices, and an order of elimination in which the factors have few entries.

use super::matrix::{NewMatrix, Rows};
use crate::linalg::matrix::Entry;
use device::{Error, Result};
use std::collections::BTreeSet;

/// A column of a factor below its diagonal entry: rows and entries, in the order of the rows.
type FactorColumn<F> = Vec<(usize, F)>;

/// Returns the lower factor L of the matrix with rows and columns in the order of `permutation`: L times its conjugate
/// transpose is the permuted matrix. Only the lower triangle of the matrix is read.
///
/// # Errors
/// `InvalidArgument` if the matrix is not positive definite.
pub(super) fn factor<F: Entry>(
    matrix: &Rows<'_, F>,
    permutation: &[usize],
    i: usize,
) -> Result<NewMatrix<F>> {
    let size = matrix.rows;
    let mut place = vec![0; size];
    permutation.iter().enumerate().for_each(|(new, &old)| place[old] = new);
    // The permuted matrix's rows up to the diagonal.
    let mut lower: Vec<Vec<(usize, F)>> = vec![Vec::new(); size];
    for row in 0..size {
        for (column, value) in matrix.row(row).filter(|&(column, _)| column <= row) {
            let (a, b) = (place[row], place[column]);
            let (row, column, value) = if a >= b { (a, b, value) } else { (b, a, value.conjugated()) };
            lower[row].push((column, value));
        }
    }
    let mut parents = vec![usize::MAX; size];
    let mut ancestors = vec![usize::MAX; size];
    let mut columns: Vec<FactorColumn<F>> = vec![Vec::new(); size];
    let mut diagonal: Vec<F> = Vec::with_capacity(size);
    let mut work = vec![F::ZERO; size];
    let mut marks = vec![usize::MAX; size];
    let mut out = NewMatrix::new();
    for (row, entries) in lower.iter().enumerate() {
        marks[row] = row;
        let mut pattern = Vec::new();
        let mut rest = F::ZERO;
        for &(column, value) in entries {
            if column == row {
                rest = rest.plus(value);
                continue;
            }
            work[column] = work[column].plus(value);
            extend_tree(&mut parents, &mut ancestors, column, row);
            // The entries of the factor's row are on the paths from the matrix's entries to the root.
            let mut at = column;
            while at != usize::MAX && marks[at] != row {
                marks[at] = row;
                pattern.push(at);
                at = parents[at];
            }
        }
        pattern.sort_unstable();
        for &column in &pattern {
            let entry = work[column].over(diagonal[column]);
            work[column] = F::ZERO;
            for &(below, value) in &columns[column] {
                work[below] = work[below].minus(entry.times(value.conjugated()));
            }
            rest = rest.minus(entry.times(entry.conjugated()));
            columns[column].push((row, entry));
            out.push(column, entry);
        }
        let pivot = rest.real();
        if !(pivot > 0.0 && pivot.is_finite()) {
            return Err(Error::invalid(format!(
                "Sparse Cholesky factorization failed for batch index {i}. The input might not be valid."
            )));
        }
        diagonal.push(F::from_real(pivot.sqrt()));
        out.push(row, diagonal[row]);
        out.end_row()?;
    }
    Ok(out)
}

/// Adds an entry of the matrix to the elimination tree, whose parents are the first rows below the diagonal in each
/// column of the factor.
fn extend_tree(parents: &mut [usize], ancestors: &mut [usize], column: usize, row: usize) {
    let mut at = column;
    while at != row {
        let above = std::mem::replace(&mut ancestors[at], row);
        if above == usize::MAX {
            parents[at] = row;
            return;
        }
        at = above;
    }
}

/// Returns an order in which elimination creates few new entries: the next row is one of the least bound on the number of
/// its remaining neighbours (Amestoy, Davis and Duff, "An approximate minimum degree ordering algorithm", SIAM Journal on
/// Matrix Analysis and Applications, 1996).
pub(super) fn ordering<T: Copy>(matrix: &Rows<'_, T>) -> Vec<usize> {
    let size = matrix.rows;
    let mut neighbours: Vec<Vec<usize>> = vec![Vec::new(); size];
    for row in 0..size {
        for (column, _) in matrix.row(row).filter(|&(column, _)| column != row) {
            neighbours[row].push(column);
            neighbours[column].push(row);
        }
    }
    for row in &mut neighbours {
        row.sort_unstable();
        row.dedup();
    }
    // The rows that each eliminated row has connected, and for each other row the eliminated rows that connect it.
    let mut cliques: Vec<Vec<usize>> = vec![Vec::new(); size];
    let mut cliques_of: Vec<Vec<usize>> = vec![Vec::new(); size];
    let mut degrees: Vec<usize> = neighbours.iter().map(Vec::len).collect();
    let mut waiting: BTreeSet<(usize, usize)> = degrees.iter().copied().zip(0..size).collect();
    let mut marks = vec![usize::MAX; size];
    let mut outside = vec![0usize; size];
    let mut order = Vec::with_capacity(size);
    while let Some((_, pivot)) = waiting.pop_first() {
        let step = order.len();
        order.push(pivot);
        marks[pivot] = step;
        let mut clique = Vec::new();
        let absorbed = std::mem::take(&mut cliques_of[pivot]);
        let members = absorbed.iter().flat_map(|&of| std::mem::take(&mut cliques[of]));
        for row in std::mem::take(&mut neighbours[pivot]).into_iter().chain(members) {
            if marks[row] != step {
                marks[row] = step;
                clique.push(row);
            }
        }
        // The number of rows of each other clique that are not in the new one.
        for &row in &clique {
            cliques_of[row].retain(|of| !absorbed.contains(of));
            for &of in &cliques_of[row] {
                outside[of] = cliques[of].len();
            }
        }
        for &row in &clique {
            cliques_of[row].iter().for_each(|&of| outside[of] -= 1);
        }
        let left = waiting.len();
        for &row in &clique {
            neighbours[row].retain(|&other| marks[other] != step);
            let beyond: usize = cliques_of[row].iter().map(|&of| outside[of]).sum();
            let degree = (neighbours[row].len() + clique.len() - 1 + beyond).min(left.saturating_sub(1));
            waiting.remove(&(degrees[row], row));
            waiting.insert((degree, row));
            degrees[row] = degree;
            cliques_of[row].push(pivot);
        }
        // Cliques that the pivot leaves keep their other members.
        cliques[pivot] = clique;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csr_matrix::matrix::CsrMatrix;
    use graph::Tensor;

    /// Returns the matrix of a square grid of points, each connected with its neighbours.
    fn grid(side: usize) -> Result<CsrMatrix> {
        let mut indices = Vec::new();
        for point in 0..side * side {
            let (row, column) = (point / side, point % side);
            let near = (0..side * side)
                .filter(|other| (other / side).abs_diff(row) + (other % side).abs_diff(column) <= 1);
            indices.extend(near.flat_map(|other| [point as i64, other as i64]));
        }
        let entry = |index: &[i64]| if index[0] == index[1] { 5.0f64 } else { -1.0 };
        let values: Vec<f64> = indices.chunks_exact(2).map(entry).collect();
        CsrMatrix::of_entries(&[side * side; 2], &indices, Tensor::vector(&values)?)
    }

    #[test]
    fn an_ordering_is_a_permutation_in_which_a_grid_has_fewer_entries() -> Result<()> {
        let matrix = grid(20)?;
        let rows = matrix.matrix::<f64>(0)?;
        let order = ordering(&rows);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        let natural: Vec<usize> = (0..rows.rows).collect();
        assert_eq!(sorted, natural);
        let [ordered, plain] =
            [&order, &natural].map(|order| factor(&rows, order, 0).map(|f| f.values.len()));
        assert!(ordered? * 2 < plain?);
        Ok(())
    }

    #[test]
    fn a_factor_times_its_transpose_is_the_permuted_matrix() -> Result<()> {
        let matrix = grid(5)?;
        let rows = matrix.matrix::<f64>(0)?;
        let order = ordering(&rows);
        let product = factor(&rows, &order, 0)?;
        let mut dense = vec![vec![0.0; rows.rows]; rows.rows];
        for (entries, pointers) in dense.iter_mut().zip(product.pointers.windows(2)) {
            for i in pointers[0] as usize..pointers[1] as usize {
                entries[product.columns[i] as usize] = product.values[i];
            }
        }
        for a in 0..rows.rows {
            for b in 0..rows.rows {
                let sum: f64 = dense[a].iter().zip(&dense[b]).map(|(x, y)| x * y).sum();
                let wanted = rows.row(order[a]).find(|&(column, _)| column == order[b]).map_or(0.0, |e| e.1);
                assert!((sum - wanted).abs() < 1e-12, "{a} {b}: {sum} {wanted}");
            }
        }
        Ok(())
    }
}

package main

import (
	"context"
	"errors"

	"cloud.google.com/go/bigquery"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/iterator"
)

// datasetUpdate changes the description, reads it back, and makes and removes a dataset.
func (w *world) datasetUpdate(ctx context.Context) (any, error) {
	if _, err := w.dataset.Update(ctx, bigquery.DatasetMetadataToUpdate{Description: "as changed"}, ""); err != nil {
		return nil, err
	}
	found, err := w.dataset.Metadata(ctx)
	if err != nil {
		return nil, err
	}
	passing := w.client.Dataset(w.dataset.DatasetID + "_passing")
	if err := passing.Create(ctx, nil); err != nil {
		return nil, err
	}
	if err := passing.Delete(ctx); err != nil {
		return nil, err
	}
	_, missing := passing.Metadata(ctx)
	return map[string]any{"description": found.Description, "deleted": code(missing) == 404}, nil
}

func (w *world) definitions(ctx context.Context) (any, error) {
	table, err := w.table(ctx, "defined", true)
	if err != nil {
		return nil, err
	}
	passing, err := w.table(ctx, "passing", false)
	if err != nil {
		return nil, err
	}
	before, err := w.tables(ctx)
	if err != nil {
		return nil, err
	}
	if err := passing.Delete(ctx); err != nil {
		return nil, err
	}
	after, err := w.tables(ctx)
	if err != nil {
		return nil, err
	}
	found, err := table.Metadata(ctx)
	if err != nil {
		return nil, err
	}
	columns := []string{}
	for _, field := range found.Schema {
		columns = append(columns, field.Name)
	}
	return map[string]any{
		"before": before, "after": after,
		"columns": columns, "primary_key": found.TableConstraints.PrimaryKey.Columns,
	}, nil
}

func (w *world) tables(ctx context.Context) ([]string, error) {
	names := []string{}
	for tables := w.dataset.Tables(ctx); ; {
		table, err := tables.Next()
		if err == iterator.Done {
			return names, nil
		}
		if err != nil {
			return nil, err
		}
		names = append(names, table.TableID)
	}
}

func (w *world) missingTable(ctx context.Context) (any, error) {
	_, err := w.dataset.Table("missing").Metadata(ctx)
	return code(err), nil
}

// code returns the HTTP code of a refusal, and 0 where there is none.
func code(err error) int {
	var refused *googleapi.Error
	if !errors.As(err, &refused) {
		return 0
	}
	return refused.Code
}

func (w *world) query(ctx context.Context) (any, error) {
	return w.rows(ctx, "SELECT @number + 1, @text, (SELECT SUM(each) FROM UNNEST(@list) AS each)",
		bigquery.QueryParameter{Name: "number", Value: 41},
		bigquery.QueryParameter{Name: "text", Value: "it's"},
		bigquery.QueryParameter{Name: "list", Value: []int64{1, 2, 3}},
	)
}

// pages reads five rows of a table and of a query's answer, two at a time.
func (w *world) pages(ctx context.Context) (any, error) {
	if _, err := w.table(ctx, "paged", false); err != nil {
		return nil, err
	}
	if _, err := w.rows(ctx, "INSERT INTO paged (k) VALUES (1), (2), (3), (4), (5)"); err != nil {
		return nil, err
	}
	q := w.client.Query("SELECT k FROM paged ORDER BY k")
	q.DefaultDatasetID = w.dataset.DatasetID
	answer, err := q.Read(ctx)
	if err != nil {
		return nil, err
	}
	ofQuery, err := inPages(answer)
	if err != nil {
		return nil, err
	}
	ofTable, err := inPages(w.dataset.Table("paged").Read(ctx))
	return map[string]any{"query": ofQuery, "table": ofTable}, err
}

func inPages(read *bigquery.RowIterator) ([]int, error) {
	sizes := []int{}
	for pager := iterator.NewPager(read, 2, ""); ; {
		var page [][]bigquery.Value
		next, err := pager.NextPage(&page)
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, len(page))
		if next == "" {
			return sizes, nil
		}
	}
}

// job starts a query as a job, waits for it, finds it in the list, and reads its rows as the job's results.
func (w *world) job(ctx context.Context) (any, error) {
	started, err := w.client.Query("SELECT 1 AS one").Run(ctx)
	if err != nil {
		return nil, err
	}
	status, err := started.Wait(ctx)
	if err != nil {
		return nil, err
	}
	again, err := w.client.JobFromID(ctx, started.ID())
	if err != nil {
		return nil, err
	}
	read, err := again.Read(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := all(read)
	if err != nil {
		return nil, err
	}
	listed := false
	for jobs := w.client.Jobs(ctx); !listed; {
		one, err := jobs.Next()
		if err == iterator.Done {
			break
		}
		if err != nil {
			return nil, err
		}
		listed = one.ID() == started.ID()
	}
	return map[string]any{"done": status.Done(), "rows": rows, "listed": listed}, nil
}

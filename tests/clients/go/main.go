// Sessions of Google's Go clients, as a user writes them: no interceptor, no header of our own.
//
// It takes the addresses from the environment (BIGQUERY_REST, BIGQUERY_GRPC, BIGTABLE, each host:port), runs the
// sessions of those that are set, and prints one JSON line for each: {"session": ..., "saw": ...}, or "error" in place
// of "saw". What has to be seen is not known here: tests/clients/sessions.py says it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"cloud.google.com/go/bigquery"
	"cloud.google.com/go/bigquery/storage/managedwriter"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const project = "millrace-test"

// world is what every session with BigQuery works with.
type world struct {
	client  *bigquery.Client
	writer  *managedwriter.Client
	dataset *bigquery.Dataset
}

type session struct {
	name string
	run  func(context.Context) (any, error)
}

func main() {
	ctx := context.Background()
	if os.Getenv("BIGQUERY_REST") != "" {
		w, err := connect(ctx)
		stopAt(err)
		run(ctx, []session{
			{"dataset_update", w.datasetUpdate},
			{"definitions", w.definitions},
			{"missing_table", w.missingTable},
			{"query", w.query},
			{"pages", w.pages},
			{"job", w.job},
			{"default_stream", w.defaultStream},
			{"row_errors", w.rowErrors},
			{"committed_stream", w.committedStream},
			{"pending_stream", w.pendingStream},
			{"buffered_stream", w.bufferedStream},
			{"schema_update", w.schemaUpdate},
			{"shared_connection", w.sharedConnection},
		})
	}
	if os.Getenv("BIGTABLE") != "" {
		f, err := connectFront(ctx)
		stopAt(err)
		run(ctx, []session{
			{"partitions", f.partitions},
			{"mutations", f.mutations},
			{"resume", f.resume},
			{"refusals", f.refusals},
		})
	}
}

func stopAt(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, sessions []session) {
	lines := json.NewEncoder(os.Stdout)
	for _, s := range sessions {
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		saw, err := s.run(limited)
		cancel()
		if err != nil {
			lines.Encode(map[string]any{"session": s.name, "error": err.Error()})
		} else {
			lines.Encode(map[string]any{"session": s.name, "saw": saw})
		}
	}
}

func connect(ctx context.Context) (*world, error) {
	rest := option.WithEndpoint("http://" + os.Getenv("BIGQUERY_REST") + "/bigquery/v2/")
	client, err := bigquery.NewClient(ctx, project, rest, option.WithoutAuthentication())
	if err != nil {
		return nil, err
	}
	writer, err := newWriter(ctx)
	if err != nil {
		return nil, err
	}
	dataset := client.Dataset(fmt.Sprintf("go_%d", time.Now().UnixNano()))
	return &world{client, writer, dataset}, dataset.Create(ctx, &bigquery.DatasetMetadata{Description: "as created"})
}

func newWriter(ctx context.Context, options ...option.ClientOption) (*managedwriter.Client, error) {
	plaintext := option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))
	address := option.WithEndpoint(os.Getenv("BIGQUERY_GRPC"))
	return managedwriter.NewClient(ctx, project, append(options, address, option.WithoutAuthentication(), plaintext)...)
}

// table makes a table k INT64 NOT NULL, v STRING; k is its primary key where keyed.
func (w *world) table(ctx context.Context, name string, keyed bool) (*bigquery.Table, error) {
	table := w.dataset.Table(name)
	definition := &bigquery.TableMetadata{Schema: bigquery.Schema{
		{Name: "k", Type: bigquery.IntegerFieldType, Required: true},
		{Name: "v", Type: bigquery.StringFieldType},
	}}
	if keyed {
		definition.TableConstraints = &bigquery.TableConstraints{PrimaryKey: &bigquery.PrimaryKey{Columns: []string{"k"}}}
	}
	return table, table.Create(ctx, definition)
}

// rows runs a statement and returns its rows.
func (w *world) rows(ctx context.Context, sql string, parameters ...bigquery.QueryParameter) ([][]any, error) {
	q := w.client.Query(sql)
	q.DefaultDatasetID, q.Parameters = w.dataset.DatasetID, parameters
	read, err := q.Read(ctx)
	if err != nil {
		return nil, err
	}
	return all(read)
}

func all(read *bigquery.RowIterator) ([][]any, error) {
	rows := [][]any{}
	for {
		var values []bigquery.Value
		err := read.Next(&values)
		if err == iterator.Done {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		row := []any{}
		for _, value := range values {
			row = append(row, value)
		}
		rows = append(rows, row)
	}
}

package main

import (
	"context"
	"time"

	"cloud.google.com/go/bigquery"
	"cloud.google.com/go/bigquery/storage/apiv1/storagepb"
	"cloud.google.com/go/bigquery/storage/managedwriter"
	"cloud.google.com/go/bigquery/storage/managedwriter/adapt"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

var (
	plain   = []string{"k", "v"}
	changes = []string{"k", "v", "_CHANGE_TYPE", "_CHANGE_SEQUENCE_NUMBER"}
)

// appending is a stream and the message that its rows are written as: k is a number, all else text.
type appending struct {
	*managedwriter.ManagedStream
	message protoreflect.MessageDescriptor
}

func open(
	ctx context.Context, writer *managedwriter.Client, table *bigquery.Table, kind managedwriter.StreamType, columns []string,
) (*appending, error) {
	schema := &storagepb.TableSchema{}
	for _, column := range columns {
		field := &storagepb.TableFieldSchema{Name: column, Type: storagepb.TableFieldSchema_STRING, Mode: storagepb.TableFieldSchema_NULLABLE}
		if column == "k" {
			field.Type = storagepb.TableFieldSchema_INT64
		}
		schema.Fields = append(schema.Fields, field)
	}
	descriptor, err := adapt.StorageSchemaToProto2Descriptor(schema, "row")
	if err != nil {
		return nil, err
	}
	message := descriptor.(protoreflect.MessageDescriptor)
	normalized, err := adapt.NormalizeDescriptor(message)
	if err != nil {
		return nil, err
	}
	stream, err := writer.NewManagedStream(ctx,
		managedwriter.WithDestinationTable(managedwriter.TableParentFromParts(project, table.DatasetID, table.TableID)),
		managedwriter.WithType(kind), managedwriter.WithSchemaDescriptor(normalized),
	)
	return &appending{stream, message}, err
}

// start sends rows, each the values of the columns in their order, and does not wait for the answer.
func (a *appending) start(ctx context.Context, rows [][]any, options ...managedwriter.AppendOption) (*managedwriter.AppendResult, error) {
	data := [][]byte{}
	for _, row := range rows {
		message := dynamicpb.NewMessage(a.message)
		for index, value := range row {
			if number, isInt := value.(int); isInt {
				value = int64(number)
			}
			message.Set(a.message.Fields().Get(index), protoreflect.ValueOf(value))
		}
		encoded, err := proto.Marshal(message)
		if err != nil {
			return nil, err
		}
		data = append(data, encoded)
	}
	return a.AppendRows(ctx, data, options...)
}

// append sends rows and returns the answer.
func (a *appending) append(ctx context.Context, rows [][]any, options ...managedwriter.AppendOption) (*storagepb.AppendRowsResponse, error) {
	sent, err := a.start(ctx, rows, options...)
	if err != nil {
		return nil, err
	}
	return sent.FullResponse(ctx)
}

// defaultStream applies changes of which some come late, and more than one request is on its way at a time.
func (w *world) defaultStream(ctx context.Context) (any, error) {
	table, err := w.table(ctx, "changed", true)
	if err != nil {
		return nil, err
	}
	stream, err := open(ctx, w.writer, table, managedwriter.DefaultStream, changes)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	sent := []*managedwriter.AppendResult{}
	for _, rows := range [][][]any{
		{{1, "first", "UPSERT", "1"}, {2, "only", "UPSERT", "A"}, {3, "kept", "UPSERT", "1/0"}},
		{{1, "newest", "UPSERT", "3"}, {3, "kept too", "UPSERT", "1/1"}},
		{{1, "late", "UPSERT", "2"}, {2, "", "DELETE", "B"}},
	} {
		result, err := stream.start(ctx, rows)
		if err != nil {
			return nil, err
		}
		sent = append(sent, result)
	}
	for _, result := range sent {
		if _, err := result.FullResponse(ctx); err != nil {
			return nil, err
		}
	}
	return w.rows(ctx, "SELECT k, v FROM changed ORDER BY k")
}

// rowErrors sends one good row between two that cannot be taken; nothing of the request is written.
func (w *world) rowErrors(ctx context.Context) (any, error) {
	table, err := w.table(ctx, "refused", true)
	if err != nil {
		return nil, err
	}
	stream, err := open(ctx, w.writer, table, managedwriter.DefaultStream, changes)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	answer, err := stream.append(ctx, [][]any{{1, "a", "INSERT", "1"}, {2, "b", "UPSERT", "1"}, {3, "c", "UPSERT", "G"}})
	if answer == nil {
		return nil, err
	}
	indexes := []int64{}
	for _, one := range answer.GetRowErrors() {
		indexes = append(indexes, one.GetIndex())
	}
	if _, err := stream.append(ctx, [][]any{{2, "b", "UPSERT", "1"}}); err != nil {
		return nil, err
	}
	rows, err := w.rows(ctx, "SELECT k, v FROM refused")
	return map[string]any{"indexes": indexes, "rows": rows}, err
}

// committedStream repeats an offset and passes one over; both are refused with their code.
func (w *world) committedStream(ctx context.Context) (any, error) {
	table, err := w.table(ctx, "committed", false)
	if err != nil {
		return nil, err
	}
	stream, err := open(ctx, w.writer, table, managedwriter.CommittedStream, plain)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	codes := []int{}
	for _, offset := range []int64{0, 0, 1, 7} {
		_, err := stream.append(ctx, [][]any{{int(offset), "row"}}, managedwriter.WithOffset(offset))
		codes = append(codes, int(status.Code(err)))
	}
	count, err := stream.Finalize(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := w.rows(ctx, "SELECT k, v FROM committed ORDER BY k")
	return map[string]any{"codes": codes, "count": count, "rows": rows}, err
}

// pendingStream counts what a query sees before and after the commit.
func (w *world) pendingStream(ctx context.Context) (any, error) {
	table, err := w.table(ctx, "pending", false)
	if err != nil {
		return nil, err
	}
	stream, err := open(ctx, w.writer, table, managedwriter.PendingStream, plain)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if _, err := stream.append(ctx, [][]any{{1, "a"}, {2, "b"}}); err != nil {
		return nil, err
	}
	before, err := w.rows(ctx, "SELECT COUNT(*) FROM pending")
	if err != nil {
		return nil, err
	}
	if _, err := stream.Finalize(ctx); err != nil {
		return nil, err
	}
	parent := managedwriter.TableParentFromParts(project, table.DatasetID, table.TableID)
	answer, err := w.writer.BatchCommitWriteStreams(ctx, &storagepb.BatchCommitWriteStreamsRequest{
		Parent: parent, WriteStreams: []string{stream.StreamName()},
	})
	if err != nil {
		return nil, err
	}
	after, err := w.rows(ctx, "SELECT COUNT(*) FROM pending")
	return map[string]any{"before": before, "errors": len(answer.GetStreamErrors()), "after": after}, err
}

// bufferedStream flushes the first of two rows.
func (w *world) bufferedStream(ctx context.Context) (any, error) {
	table, err := w.table(ctx, "buffered", false)
	if err != nil {
		return nil, err
	}
	stream, err := open(ctx, w.writer, table, managedwriter.BufferedStream, plain)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if _, err := stream.append(ctx, [][]any{{1, "a"}, {2, "b"}}); err != nil {
		return nil, err
	}
	flushed, err := stream.FlushRows(ctx, 0)
	if err != nil {
		return nil, err
	}
	rows, err := w.rows(ctx, "SELECT k FROM buffered")
	return map[string]any{"flushed": flushed, "rows": rows}, err
}

// schemaUpdate adds a column while a stream is open: an answer names it, and rows that have it follow.
func (w *world) schemaUpdate(ctx context.Context) (any, error) {
	table, err := w.table(ctx, "widened", false)
	if err != nil {
		return nil, err
	}
	stream, err := open(ctx, w.writer, table, managedwriter.DefaultStream, plain)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if _, err := stream.append(ctx, [][]any{{1, "a"}}); err != nil {
		return nil, err
	}
	if _, err := w.rows(ctx, "ALTER TABLE widened ADD COLUMN added STRING"); err != nil {
		return nil, err
	}
	columns := []string{}
	for len(columns) == 0 { // until the session's time is up
		answer, err := stream.append(ctx, [][]any{{1, "a"}})
		if err != nil {
			return nil, err
		}
		for _, field := range answer.GetUpdatedSchema().GetFields() {
			columns = append(columns, field.GetName())
		}
		time.Sleep(100 * time.Millisecond)
	}
	wider, err := open(ctx, w.writer, table, managedwriter.DefaultStream, []string{"k", "v", "added"})
	if err != nil {
		return nil, err
	}
	defer wider.Close()
	if _, err := wider.append(ctx, [][]any{{1, "a", "new"}}); err != nil {
		return nil, err
	}
	rows, err := w.rows(ctx, "SELECT k, v, added FROM widened WHERE added IS NOT NULL")
	return map[string]any{"columns": columns, "rows": rows}, err
}

// sharedConnection writes to the default streams of two tables in turn, over one connection (multiplexing).
func (w *world) sharedConnection(ctx context.Context) (any, error) {
	writer, err := newWriter(ctx, managedwriter.WithMultiplexing(), managedwriter.WithMultiplexPoolLimit(1))
	if err != nil {
		return nil, err
	}
	defer writer.Close()
	streams := []*appending{}
	for _, name := range []string{"left", "right"} {
		table, err := w.table(ctx, name, true)
		if err != nil {
			return nil, err
		}
		stream, err := open(ctx, writer, table, managedwriter.DefaultStream, changes)
		if err != nil {
			return nil, err
		}
		streams = append(streams, stream)
	}
	for turn, sequence := range []string{"1", "2"} {
		for index, stream := range streams {
			if _, err := stream.append(ctx, [][]any{{10*index + turn, sequence, "UPSERT", sequence}}); err != nil {
				return nil, err
			}
		}
	}
	return w.rows(ctx, "SELECT k, v FROM `left` UNION ALL SELECT k, v FROM `right` ORDER BY k")
}
